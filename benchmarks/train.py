"""Training: speed against other libraries and of each optimizer, and a language model beside its equal.

./dev bench train NAME [...]    one of peers, optimizers, language
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _shared import TorchTransformer, interleaved, ratio, run_measurement, table, twin
from torch import Tensor, nn
from torch.optim import Optimizer

from polyhead.config.recipe import TrainConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import OPTIMIZER
from polyhead.data.batching.collate import PairBatch, collate
from polyhead.data.batching.length_bucketing import plan_epoch
from polyhead.data.readers.parallel_corpus import open_corpus, read_corpus_texts
from polyhead.data.stores.pair_store import PairStore
from polyhead.data.synthetic.synthetic_cldr import write_corpus
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.models import CausalLM, Seq2Seq, build, preset_config
from polyhead.nn.loss import IGNORE_INDEX, cross_entropy
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.loop import train_step
from polyhead.train.muon import Muon
from polyhead.train.precision import autocast, resolve_precision
from polyhead.train.train_state import TrainState

SMOOTHING = 0.1


def peers(parser: argparse.ArgumentParser) -> None:
    """Training steps on the same batches: Polyhead against torch.nn.Transformer and Hugging Face Marian,
    paired in one run.

    ./dev bench train peers                                     tiny sizes, embedded corpus, fp32 and bf16
    ./dev bench train peers --source train.en --target train.de --vocab-size 10000      a real corpus
    """
    parser.add_argument("--preset", default="tiny", help="sizes (default: tiny)")
    parser.add_argument("--source", type=Path, help="source side of a parallel corpus (default: embedded)")
    parser.add_argument("--target", type=Path)
    parser.add_argument(
        "--vocab-size", type=int, default=10000, help="of the model; the tokenizer may find fewer"
    )
    parser.add_argument("--max-tokens", type=int, default=3200)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    tune_malloc()  # as the command line does; the peers of this process have it too
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, batches = some_batches(options, Path(folder))
    tokens = statistics.mean(batch.n_tokens for batch in batches)
    print(f"{options.preset}, vocabulary {options.vocab_size}, {tokens:,.0f} target tokens a batch, dropout "
          f"{options.dropout}, "
          f"{options.threads} threads, medians of {options.rounds} interleaved rounds")  # fmt: skip
    rows = [["precision", "system", "target tokens/s", "Polyhead is faster by"]]
    for precision in ("fp32", "bf16"):
        steps = contestants(options, tokenizer, batches, precision)
        seconds = interleaved(steps, options.rounds, warmup=2)
        for name, times in seconds.items():
            rows.append(
                [
                    precision,
                    name,
                    f"{tokens / statistics.median(times):,.0f}",
                    f"{ratio(times, seconds['Polyhead']):.2f}",
                ]
            )
    print(table(rows))


def some_batches(options: argparse.Namespace, folder: Path) -> tuple[Tokenizer, list[PairBatch]]:
    """A tokenizer and a dozen batches of real text, spread over the lengths."""
    files = (options.source, options.target) if options.source else write_corpus(folder, n=6000)["train"]
    corpus = open_corpus(files)
    tokenizer = train_tokenizer(read_corpus_texts(corpus), Choice("bpe"), options.vocab_size)
    store = PairStore.open_or_build(corpus, tokenizer, folder, max_len=128)
    plan = plan_epoch(
        store.source_lengths, store.target_lengths, max_tokens=options.max_tokens, seed=1, epoch=0
    )
    plan = [rows for rows in plan if len(rows) * max(store.target_lengths[rows]) > 0.8 * options.max_tokens][
        :12
    ]
    return tokenizer, [collate(store, rows, tokenizer) for rows in plan]


def contestants(
    options: argparse.Namespace, tokenizer: Tokenizer, batches: list[PairBatch], precision: str
) -> dict[str, Callable[[], None]]:
    """One call is one whole step: forward, loss, backward, clipping, fused AdamW."""
    model = build(preset_config(options.preset, options.vocab_size, dropout=options.dropout), seed=1)
    theirs = twin(model, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)

    def ours(batch: PairBatch) -> Tensor:
        assert isinstance(model, Seq2Seq)
        loss = cross_entropy(
            model.features(batch.source, batch.target, batch.source_pos),
            model.head,
            batch.labels,
            SMOOTHING,
        )
        return loss.total / loss.count

    def plain(logits: Tensor, batch: PairBatch) -> Tensor:
        return F.cross_entropy(
            logits.flatten(0, 1).float(),
            batch.labels.flatten(),
            ignore_index=IGNORE_INDEX,
            label_smoothing=SMOOTHING,
        )

    def padding(batch: PairBatch) -> Tensor | None:
        return None if batch.source_pos is None else batch.source_pos < 0

    def hugging_face(batch: PairBatch) -> Tensor:
        mask = None if batch.source_pos is None else (batch.source_pos >= 0).long()
        out = theirs(
            input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.target, use_cache=False
        )
        return plain(out.logits, batch)

    torchs = TorchTransformer(model)
    losses: dict[str, tuple[nn.Module, Callable[[PairBatch], Tensor]]] = {
        "torch.nn.Transformer": (
            torchs,
            lambda batch: plain(torchs(batch.source, batch.target, padding(batch)), batch),
        ),
        "Hugging Face Marian": (theirs, hugging_face),
        "Polyhead": (model, ours),
    }

    def theirs_in() -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")

    def ours_in() -> AbstractContextManager[object]:
        return autocast(precision, torch.device("cpu"))  # type: ignore[arg-type]

    return {
        name: stepper(module, loss, batches, ours_in if module is model else theirs_in)
        for name, (module, loss) in losses.items()
    }


def stepper(
    module: nn.Module,
    loss: Callable[[Any], Tensor],
    batches: Sequence[Any],
    inside: Callable[[], AbstractContextManager[object]],
) -> Callable[[], None]:
    """A function that does the next step; products are those of a context."""
    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    at = iter(range(10**9))

    def step() -> None:
        batch = batches[next(at) % len(batches)]
        with inside():
            value = loss(batch)
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def optimizers(parser: argparse.ArgumentParser) -> None:
    """What an update of each optimizer costs, beside Muon of torch, paired in one run.

    ./dev bench train optimizers
    """
    parser.add_argument("--presets", nargs="+", default=["tiny", "base"], help="sizes (default: tiny base)")
    parser.add_argument("--vocab-size", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    tune_malloc()
    torch.set_num_threads(options.threads)
    fast = "fast" if resolve_precision("auto", torch.device("cpu")) == "bf16" else "slow"
    print(
        f"{options.threads} threads, medians of {options.rounds} interleaved rounds, a processor {fast} in "
        "bf16\n"
    )
    rows = [["model", "optimizer", "ms an update", "times Polyhead's Muon"]]
    for name in options.presets:
        updates = {
            kind: updater(name, options.vocab_size, kind) for kind in (*OPTIMIZER.names(), "torch's Muon")
        }
        seconds = interleaved(updates, options.rounds)
        for kind, times in seconds.items():
            rows.append(
                [name, kind, f"{1e3 * statistics.median(times):,.1f}", f"{ratio(times, seconds['muon']):.2f}"]
            )
    print(table(rows))


def updater(size: str, vocab_size: int, kind: str) -> Callable[[], None]:
    """A function that updates a model of this size by random gradients, which stay the same."""
    model = build(preset_config(size, vocab_size), seed=1)
    optimizers = OPTIMIZER.build(Choice("muon" if kind == "torch's Muon" else kind), model, 1e-3)
    if kind == "torch's Muon":
        optimizers = [of_torch(one) if isinstance(one, Muon) else one for one in optimizers]
    torch.manual_seed(0)
    for p in model.parameters():
        p.grad = torch.randn_like(p)

    def update() -> None:
        for optimizer in optimizers:
            optimizer.step()

    return update


def of_torch(muon: Muon) -> Optimizer:
    """The same of torch."""
    inside: list[nn.Parameter] = muon.param_groups[0]["params"]
    return torch.optim.Muon(inside, lr=1e-3, adjust_lr_fn="match_rms_adamw")


WIDTH, ROWS, STEPS = 64, 12, 20  # of a step; STEPS make a round

LR, CLIP = 1e-3, 1.0


class TorchLanguageModel(nn.Module):
    """The same model of torch's own layers, with the weights of ours."""

    def __init__(self, ours: CausalLM) -> None:
        super().__init__()
        c = ours.config
        layer = nn.TransformerEncoderLayer(
            c.d_model, c.n_heads, c.d_ff or 0, 0.0, "gelu", batch_first=True, norm_first=True, bias=False
        )
        self.token, self.position = nn.Embedding(c.vocab_size, c.d_model), nn.Embedding(c.max_len, c.d_model)
        self.layers = nn.TransformerEncoder(
            layer, c.n_layers, nn.LayerNorm(c.d_model, bias=False), enable_nested_tensor=False
        )
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(WIDTH))
        self.mask: Tensor
        with torch.no_grad():
            self.token.weight.copy_(ours.embedding.token.weight)
            self.position.weight.copy_(ours.embedding.position.weight)
            self.layers.norm.weight.copy_(ours.stack.final_norm.weight)  # type: ignore[union-attr, arg-type]
            for theirs, block in zip(self.layers.layers, ours.stack.layers, strict=True):
                attn = block.attn
                theirs.self_attn.in_proj_weight.copy_(
                    torch.cat([p.weight for p in (attn.q_proj, attn.k_proj, attn.v_proj)])
                )  # type: ignore[union-attr]
                theirs.self_attn.out_proj.weight.copy_(attn.o_proj.weight)
                theirs.linear1.weight.copy_(block.ffn.up_proj.weight)
                theirs.linear2.weight.copy_(block.ffn.down_proj.weight)
                theirs.norm1.weight.copy_(block.attn_residual.norm.weight)
                theirs.norm2.weight.copy_(block.ffn_residual.norm.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, V)."""
        x = self.token(tokens) + self.position.weight[: tokens.size(1)]
        return F.linear(self.layers(x, self.mask, is_causal=True), self.token.weight)


class Rows:
    """A task of the training loop: rows of a text at random places."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def batch(self, seed: int) -> tuple[Tensor, Tensor]:
        at = torch.randint(
            0, len(self.text) - WIDTH - 1, (ROWS, 1), generator=torch.Generator().manual_seed(seed)
        )
        cells = self.text[at + torch.arange(WIDTH + 1)]
        return cells[:, :-1], cells[:, 1:]

    def count_labels(self, batch: tuple[Tensor, Tensor]) -> int:
        return batch[1].numel()

    def loss(self, model: CausalLM, batch: tuple[Tensor, Tensor]) -> object:
        return cross_entropy(model.features(batch[0]), model.head, batch[1])


def language(parser: argparse.ArgumentParser) -> None:
    """Training steps of a small language model on the same rows: Polyhead, torch.nn and Hugging Face GPT-2 in
    turns.

    The setting is nanoGPT's for a CPU: 4 layers, 4 heads, d_model 128, rows of 64 characters, 12 rows a step,
    no biases, no dropout, AdamW with (0.9, 0.99) and weight decay 0.1 on matrices, gradients clipped at 1.
    All begin with the same weights.

    ./dev bench train language --text tinyshakespeare/input.txt
    """
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    tune_malloc()  # as the command line does; the peers of this process have it too
    torch.set_num_threads(options.threads)
    characters = options.text.read_text()
    known = {c: i for i, c in enumerate(sorted(set(characters)))}
    rows = Rows(torch.tensor([known[c] for c in characters]))
    model = _model(len(known))
    contestants = {
        "Polyhead": _ours(model, rows, options.precision),
        "torch.nn": _plain(TorchLanguageModel(model), rows, lambda peer, x: peer(x), options.precision),
        "Hugging Face GPT-2": _plain(
            _hugging_face(model), rows, lambda peer, x: peer(x).logits, options.precision
        ),
    }
    first = {name: step() for name, step in contestants.items()}
    assert max(first.values()) - min(first.values()) < 2e-3, f"these are not the same model: {first}"
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {ROWS} rows of {WIDTH} a step, "
          f"{options.precision}, {options.threads} threads, "
          f"medians of {options.rounds} interleaved rounds of {STEPS} steps")  # fmt: skip
    seconds = interleaved(
        {n: lambda step=step: [step() for _ in range(STEPS)] for n, step in contestants.items()},
        options.rounds,
    )
    cells = [["system", "ms per step", "minutes for 2,000 steps", "Polyhead is faster by"]]
    for name, times in seconds.items():
        each = statistics.median(times) / STEPS
        cells.append(
            [name, f"{1e3 * each:.1f}", f"{2000 * each / 60:.1f}", f"{ratio(times, seconds['Polyhead']):.2f}"]
        )
    print(table(cells))


def _model(vocab_size: int) -> CausalLM:
    from polyhead import ModelConfig

    bare = {"bias": False}
    config = ModelConfig(
        kind="decoder", vocab_size=vocab_size, d_model=128, n_layers=4, n_heads=4, max_len=WIDTH, dropout=0.0,
        norm_first=True,
        position="learned", norm={"name": "layernorm", **bare}, attention={"name": "softmax", **bare},
            init="normal",
        feed_forward={"name": "gelu", **bare}, scale_embedding=False,
    )  # fmt: skip
    model = build(config, seed=1)
    assert isinstance(model, CausalLM)
    return model


def _ours(model: CausalLM, rows: Rows, precision: str) -> Callable[[], float]:
    """Steps of our own training loop, all that it does at each but reporting."""
    config = TrainConfig(
        steps=10**6, lr=LR, clip_norm=CLIP, precision=precision, schedule={"name": "constant", "warmup": 0},
        optimizer={"name": "adamw", "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1},
    )  # fmt: skip
    training = TrainState(model.train(), config, 128, 10**6)
    seeds = iter(range(10**9))

    def step() -> float:
        training.progress.step += 1
        before = training.progress.sums
        train_step(training, rows, [rows.batch(next(seeds))], config)  # type: ignore[arg-type]
        return (training.progress.sums.nll - before.nll) / (ROWS * WIDTH)

    return step


def _hugging_face(ours: CausalLM) -> nn.Module:
    """GPT-2 of transformers with the weights of ours and biases of zero that do not learn."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from polyhead.hf.families.gpt2 import GPT2_FAMILY
    from polyhead.hf.weight_map import to_hf
    from polyhead.nn.state import named_state

    c = ours.config
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=c.vocab_size, n_positions=c.max_len, n_embd=c.d_model, n_layer=c.n_layers,
            n_head=c.n_heads,
            activation_function="gelu", bos_token_id=None, eos_token_id=None, resid_pdrop=0, embd_pdrop=0,
            attn_pdrop=0,
        )
    )  # fmt: skip
    own = named_state(ours)
    biases = {
        name.replace("weight", "bias"): t.new_zeros(len(t))
        for name, t in own.items()
        if "layers" in name or "norm" in name
    }
    given = to_hf(GPT2_FAMILY.weight_map, own | biases, c)
    theirs.load_state_dict(given | {"lm_head.weight": given["transformer.wte.weight"]})
    for name, parameter in theirs.named_parameters():
        parameter.requires_grad_(not name.endswith("bias"))
    return theirs


def _plain(
    peer: nn.Module, rows: Rows, forward: Callable[[nn.Module, Tensor], Tensor], precision: str
) -> Callable[[], float]:
    """Steps as anybody writes them."""
    learned = [p for p in peer.train().parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learned if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in learned if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.99), eps=1e-8, fused=True)
    seeds = iter(range(10**9))

    def step() -> float:
        tokens, labels = rows.batch(next(seeds))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = forward(peer, tokens)
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(learned, CLIP)
        optimizer.step()
        return float(loss.detach())

    return step


if __name__ == "__main__":
    run_measurement(__doc__ or "", peers, optimizers, language)
