"""Vectors of texts by the same weights: Polyhead against Hugging Face, paired in one run.

python benchmarks/encode.py TEXT            a line each; sizes of MiniLM, random weights, a vocabulary learnt from the text
python benchmarks/encode.py TEXT --sizes bert-base

Hugging Face reads as sentence-transformers does: sorted by length, 32 texts at a time, then the mean of their tokens.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from timing import apart, interleaved, ratio, table
from torch import Tensor

import polyhead as ph
from polyhead import Choice
from polyhead.tokenizers.train_tokenizer import train_tokenizer

SIZES = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}  # fmt: skip
VOCABULARY = 8000
TOGETHER = 32  # texts, of Hugging Face
NEAR = 1e-4  # between vectors in fp32


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
            seconds = interleaved(calls, options.n_rounds)
    rows = [["system", "texts/s", "times Hugging Face fp32", "cosine with fp32, least"]]
    for name, times in seconds.items():
        speed = f"{options.limit / statistics.median(times):,.0f}"
        rows.append([name, speed, f"{ratio(seconds['Hugging Face fp32'], times):.2f}", f"{near[name]:.4f}"])
    print(
        f"{options.sizes}, {options.limit} texts, {options.threads} threads, "
        f"medians of {options.n_rounds} interleaved rounds, a process each"
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
    main()
