"""Training steps on the same batches: Polyhead against torch.nn.Transformer and Hugging Face Marian, paired in one run.

python benchmarks/train.py                                     tiny sizes, embedded corpus, fp32 and bf16
python benchmarks/train.py --source train.en --target train.de --vocab-size 10000      a real corpus
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
from peers import TorchTransformer, twin
from timing import interleaved, ratio, table
from torch import Tensor, nn

from polyhead.core.choice import Choice
from polyhead.data.batching.collate import PairBatch, collate
from polyhead.data.batching.length_bucketing import plan_epoch
from polyhead.data.readers.parallel_corpus import open_corpus, read_corpus_texts
from polyhead.data.stores.pair_store import PairStore
from polyhead.data.synthetic.synthetic_cldr import write_corpus
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.models import Seq2Seq, build, preset_config
from polyhead.nn.loss import IGNORE_INDEX, cross_entropy
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.precision import autocast

SMOOTHING = 0.1


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    print(f"{options.preset}, vocabulary {options.vocab_size}, {tokens:,.0f} target tokens a batch, dropout {options.dropout}, "
          f"{options.threads} threads, medians of {options.n_rounds} interleaved rounds")  # fmt: skip
    rows = [["precision", "system", "target tokens/s", "Polyhead is faster by"]]
    for precision in ("fp32", "bf16"):
        steps = contestants(options, tokenizer, batches, precision)
        seconds = interleaved(steps, options.n_rounds, warmup=2)
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


if __name__ == "__main__":
    main()
