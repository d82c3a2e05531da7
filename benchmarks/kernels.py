"""Attention and encoders by the size of their inputs.

./dev bench kernels NAME [...]    one of linear, attention, encode
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from _shared import apart, interleaved, ratio, run_measurement, table
from torch import Tensor, nn

import polyhead as ph
from polyhead import Choice
from polyhead.cache.factory import make_cache
from polyhead.config.model import AttentionShape
from polyhead.core.registry import ATTENTION
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.kernels.training.attention import AttentionCall, AttentionFunction, can_attend
from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.kv import KV
from polyhead.nn.position.base import Position
from polyhead.tokenizers.train_tokenizer import train_tokenizer

N_HEADS = 4


def linear(parser: argparse.ArgumentParser) -> None:
    """Linear attention against softmax attention, one layer: where it gets faster, what a generated token
    costs, which chunk.

    ./dev bench kernels linear
    """
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--past", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--chunks", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tune_malloc()
    print(f"{N_HEADS} heads of {options.head_dim}, fp32, {options.threads} threads\n")
    print("Times faster than softmax, at N tokens a row (whole: as in an encoder; causal: as in a decoder)\n")
    print(table(crossover(options.head_dim, options.lengths, options.rounds)))
    print("\nA generated token after so many others: time against the first line, and what the cache holds\n")
    print(table(generation(options.head_dim, options.past, options.rounds)))
    print("\nTime of a causal training pass by chunk, against the fastest\n")
    print(table(chunks(options.head_dim, options.lengths[-1], options.chunks, options.rounds)))


def layer(name: str, head_dim: int, causal: bool, **choices: int) -> nn.Module:
    """One attention of the model that is measured."""
    shape = AttentionShape.from_sizes(N_HEADS * head_dim, N_HEADS, causal=causal)
    made: nn.Module = ATTENTION.build(Choice(name, **choices), shape, Position(shape))
    return made


def rows(length: int, head_dim: int, learns: bool) -> Tensor:
    """A batch of 2,048 tokens, or one row if it is longer."""
    return torch.randn(max(1, 2048 // length), length, N_HEADS * head_dim, requires_grad=learns)


def calls(attention: nn.Module, x: Tensor) -> Callable[[], object]:
    """Forward; and backward, if x learns."""
    if x.requires_grad:
        return lambda: attention(x).sum().backward()

    def forward() -> None:
        with torch.no_grad():
            attention(x)

    return forward


def crossover(head_dim: int, lengths: list[int], rounds: int) -> list[list[str]]:
    """Softmax time / linear time, forward and in training."""
    kinds = [(learns, causal) for learns in (False, True) for causal in (False, True)]
    head = ["N", *(f"{'training' if a else 'forward'}, {'causal' if b else 'whole'}" for a, b in kinds)]
    lines = [head]
    for length in lengths:
        line = [f"{length:,}"]
        for learns, causal in kinds:
            x = rows(length, head_dim, learns)
            ways = {name: calls(layer(name, head_dim, causal), x) for name in ("softmax", "linear")}
            seconds = interleaved(ways, rounds)
            line.append(f"{ratio(seconds['softmax'], seconds['linear']):.2f}")
        lines.append(line)
    return lines


def filled(attention: nn.Module, head_dim: int, past: int, n: int) -> Cache:
    """A cache with room for n more, in which past tokens were put (their numbers do not matter to the
    clock).
    """
    state = attention.state
    cpu = torch.device("cpu")
    cache = make_cache(
        None, CacheShape(1, N_HEADS, head_dim, head_dim, torch.float32, cpu, (state,)), 1, past + n
    )
    pos = torch.arange(past)[None]
    cache.prepare_step([0], pos)
    if state is None:
        kv = torch.randn(1, N_HEADS, past, head_dim)
        cache.layers[0].update(KV(kv, kv, pos[:, None]))
    else:
        cache.layers[0].state = tuple(torch.rand_like(x) * past for x in cache.layers[0].state)
    return cache


@torch.inference_mode()
def generation(head_dim: int, past: list[int], rounds: int, n: int = 20) -> list[list[str]]:
    """Time of a decoding step and bytes of the cache, by the length of what was before."""
    x = torch.randn(1, 1, N_HEADS * head_dim)
    lines = [["past", "linear: time", "linear: cache", "softmax: time", "softmax: cache"]]
    made = {name: layer(name, head_dim, True) for name in ("linear", "softmax")}
    caches = {(name, p): filled(a, head_dim, p, (rounds + 2) * n) for name, a in made.items() for p in past}
    at = {key: key[1] for key in caches}

    def step(key: tuple[str, int]) -> None:
        for _ in range(n):
            pos = torch.full((1, 1), at[key])
            caches[key].prepare_step([0], pos)
            made[key[0]](x, pos, caches[key].layers[0])
            at[key] += 1

    seconds = interleaved({str(key): lambda key=key: step(key) for key in caches}, rounds)
    for p in past:
        line = [f"{p:,}"]
        for name in made:
            line.append(f"{ratio(seconds[str((name, p))], seconds[str((name, past[0]))]):.2f}")
            line.append(f"{caches[name, p].nbytes / 2**10:,.0f} KiB")
        lines.append(line)
    first = {name: statistics.median(seconds[str((name, past[0]))]) / n * 1e6 for name in made}
    lines[1][1] += f" ({first['linear']:.0f} us)"
    lines[1][3] += f" ({first['softmax']:.0f} us)"
    return lines


def chunks(head_dim: int, longest: int, sizes: list[int], rounds: int) -> list[list[str]]:
    """Time of forward and backward by chunk, for a short, a middling and a long row."""
    lines = [["N", *(f"chunk {size}" for size in sizes)]]
    for length in (longest // 16, longest // 4, longest):
        x = rows(length, head_dim, True)
        seconds = interleaved(
            {str(size): calls(layer("linear", head_dim, True, chunk=size), x) for size in sizes}, rounds
        )
        best = min(seconds.values(), key=statistics.median)
        lines.append([f"{length:,}", *(f"{ratio(seconds[str(size)], best):.2f}" for size in sizes)])
    return lines


# rows, heads, queries, slots, head_dim, does it learn
CASES = [
    (128, 4, 15, 15, 32, True),
    (32, 4, 64, 64, 32, True),
    (8, 4, 256, 256, 32, True),
    (4, 4, 512, 512, 32, True),
    (128, 8, 1, 33, 64, False),
    (16, 12, 1, 512, 64, False),
    (1, 12, 1, 512, 64, False),
    (1, 8, 1, 33, 64, False),
    (32, 8, 26, 26, 64, False),
]


def attention(parser: argparse.ArgumentParser) -> None:
    """Where two plain products beat torch's fused attention of this CPU, which nn/kv.py decides by; and our
    kernel of training.

    ./dev bench kernels attention
    """
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [["rows x heads x queries x slots", "pass", "precision", "fused ms", "products ms", "ours ms"]]
    for B, H, T, S, D, learns in CASES:
        for dtype in (torch.float32, torch.bfloat16):
            q, k, v = (torch.randn(B, H, n, D).to(dtype).requires_grad_(learns) for n in (T, S, S))
            mask = torch.zeros(B, 1, 1, S, dtype=dtype)
            ways = {
                "fused": lambda q=q, k=k, v=v, mask=mask: F.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask
                ),
                "products": lambda q=q, k=k, v=v, mask=mask: products(q, k, v, mask),
            }
            if learns and can_attend(*(x.transpose(1, 2) for x in (q, k, v))):
                ways["ours"] = lambda q=q, k=k, v=v, mask=mask: AttentionFunction.apply(
                    q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), AttentionCall(mask == 0)
                )
            seconds = interleaved(
                {name: learning(way) if learns else way for name, way in ways.items()}, options.rounds
            )
            times = [f"{1e3 * statistics.median(seconds[name]):.3f}" for name in ways]
            times += ["-"] * (3 - len(times))
            rows.append([f"{B} x {H} x {T} x {S}", "both" if learns else "forward", str(dtype)[6:], *times])
    print(table(rows))


def products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention written out."""
    return torch._safe_softmax(q * q.size(-1) ** -0.5 @ k.mT + mask, -1) @ v


def learning(way: Callable[[], Tensor]) -> Callable[[], None]:
    """Forward and backward."""
    return lambda: way().sum().backward()


SIZES = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536},
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072},
}  # fmt: skip

VOCABULARY = 8000

TOGETHER = 32  # texts, of Hugging Face

NEAR = 1e-4  # between vectors in fp32


def encode(parser: argparse.ArgumentParser) -> None:
    """Vectors of texts by the same weights: Polyhead against Hugging Face, paired in one run.

    ./dev bench kernels encode TEXT            a line each; sizes of MiniLM, random weights, a vocabulary
    learnt from the text ./dev bench kernels encode TEXT --sizes bert-base

    Hugging Face reads as sentence-transformers does: sorted by length, 32 texts at a time, then the mean of
    their tokens.
    """
    parser.add_argument("text", type=Path)
    parser.add_argument("--sizes", choices=SIZES, default="minilm")
    parser.add_argument("--limit", type=int, default=512, help="texts, the first ones")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    systems = {
        "Hugging Face fp32": theirs_fp32,
        "Hugging Face bf16": theirs_bf16,
        "Polyhead fp32": ours_fp32,
        "Polyhead bf16": ours_bf16,
        "Polyhead int8": ours_int8,
    }
    with TemporaryDirectory() as place:
        options.model = Path(place)
        made(options)
        with apart(systems, options) as calls:
            wanted = calls["Hugging Face fp32"]()
            gap = float((calls["Polyhead fp32"]() - wanted).abs().max())
            assert gap < NEAR, gap
            near = {name: nearness(call(), wanted) for name, call in calls.items()}
            seconds = interleaved(calls, options.rounds)
    rows = [["system", "texts/s", "times Hugging Face fp32", "cosine with fp32, least"]]
    for name, times in seconds.items():
        speed = f"{options.limit / statistics.median(times):,.0f}"
        rows.append([name, speed, f"{ratio(seconds['Hugging Face fp32'], times):.2f}", f"{near[name]:.4f}"])
    print(
        f"{options.sizes}, {options.limit} texts, {options.threads} threads, "
        f"medians of {options.rounds} interleaved rounds, a process each"
    )
    print(table(rows))


def made(options: argparse.Namespace) -> None:
    """A checkpoint of random weights, and a tokenizer that puts its tokens around a text as BERT's does."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    tokenizer = train_tokenizer(lines(options), Choice("wordpiece"), VOCABULARY)
    config = BertConfig(**SIZES[options.sizes], vocab_size=VOCABULARY, pad_token_id=tokenizer.pad_id)
    BertModel(config).save_pretrained(options.model)
    tokenizer.with_template([tokenizer.bos_id], [tokenizer.eos_id]).save(options.model, has_segments=True)


def lines(options: argparse.Namespace) -> list[str]:
    """The texts."""
    found = [line for line in options.text.read_text(encoding="utf-8").split("\n") if line.strip()]
    options.limit = min(options.limit, len(found))
    return found[: options.limit]


Vectors = Callable[[], Tensor]


def theirs_fp32(options: argparse.Namespace) -> Vectors:
    """AutoModel of transformers."""
    return theirs(options, torch.float32)


def theirs_bf16(options: argparse.Namespace) -> Vectors:
    """The same with bf16 weights."""
    return theirs(options, torch.bfloat16)


def theirs(options: argparse.Namespace, dtype: torch.dtype) -> Vectors:
    """Sorted by length, so many texts at a time."""
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(options.threads)
    texts, model = lines(options), AutoModel.from_pretrained(options.model, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)

    @torch.inference_mode()
    def run() -> Tensor:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        out = torch.zeros(len(texts), model.config.hidden_size)
        for at in range(0, len(order), TOGETHER):
            some = order[at : at + TOGETHER]
            given = tokenizer([texts[i] for i in some], padding=True, return_tensors="pt")
            real = given["attention_mask"][:, :, None]
            out[some] = ((model(**given).last_hidden_state * real).sum(1) / real.sum(1)).float()
        return out

    return run


def ours_fp32(options: argparse.Namespace) -> Vectors:
    """run.embed, as the verb and the service load a run."""
    return ours(options, "fp32")


def ours_bf16(options: argparse.Namespace) -> Vectors:
    """The same with bf16 weights."""
    return ours(options, "bf16")


def ours_int8(options: argparse.Namespace) -> Vectors:
    """The same with weights of 8 bits."""
    return ours(options, "int8")


def ours(options: argparse.Namespace, dtype: str) -> Vectors:
    """All texts at once: it sorts them itself."""
    torch.set_num_threads(options.threads)
    texts, run = lines(options), ph.load(options.model, dtype=dtype, fast=True, device="cpu")
    return lambda: run.embed(texts)


def nearness(found: Tensor, wanted: Tensor) -> float:
    """The smallest cosine between a vector and the one it should be."""
    return float(torch.cosine_similarity(found, wanted).min())


if __name__ == "__main__":
    run_measurement(__doc__ or "", linear, attention, encode)
