"""What pages are worth: slots that stand empty, memory that beams and samples share, and what a step costs
more.

./dev bench paging lengths --text multi30k/train.de
./dev bench paging sharing --run RUN --text multi30k/test_2016_flickr.en
./dev bench paging steps            what a step costs with every cache, 12 layers of 768
./dev bench paging steps --beams    the same where rows are forked all the time
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch
from _shared import interleaved, ratio, table
from torch import Tensor

import polyhead as ph
from polyhead.cache.factory import make_cache
from polyhead.cache.paged import choose_block_size, estimate_waste
from polyhead.config.model import ModelConfig
from polyhead.config.yaml_io import parse_part
from polyhead.core.choice import Choice
from polyhead.core.registry import TOKENIZER
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.kernels.pack_model import pack_model
from polyhead.models import build
from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.kv import KV
from polyhead_lab.paging import list_setups, measure_full_waste, measure_growing_waste, measure_sharing

CACHES = ["static", "paged,block_size=16", "growing", "quantized,bits=8", "quantized,bits=4",
    "low_rank,rank=32", "window,window=256",
          "h2o,budget=256", "subgen,budget=256"]  # fmt: skip


def main() -> None:
    """Print the tables of one question."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("question", choices=["lengths", "sharing", "steps"])
    parser.add_argument("--text", type=Path, help="a file of lines")
    parser.add_argument("--run", type=Path, help="a trained translator or language model")
    parser.add_argument(
        "--vocabulary", type=int, default=8000, help="tokens that are learned from the text, without --run"
    )
    parser.add_argument("--limit", type=int, default=200, help="lines that are decoded")
    parser.add_argument("--join", type=int, default=1, help="lines that make one prompt or source")
    parser.add_argument(
        "--new-tokens", type=int, default=60, help="of a language model, after a prompt of a line"
    )
    parser.add_argument("--rows", type=int, default=64, help="sequences that are in memory at once")
    parser.add_argument(
        "--caches", nargs="+", default=CACHES, help="in steps, the first is what the others are compared with"
    )
    parser.add_argument(
        "--beams",
        action="store_true",
        help="steps before which rows are dropped and forked, as in beam search",
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="steps of a model that is not packed, as where there is no compiler",
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--past", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tune_malloc()
    {"lengths": lengths, "sharing": sharing, "steps": steps}[options.question](options)


def lengths(options: argparse.Namespace) -> None:
    """The share of empty slots by block, when rows are full and on average while they grow."""
    found = token_counts(options)
    mean = statistics.fmean(found)
    chosen = choose_block_size(mean)
    print(
        f"{len(found):,} rows of {min(found)} to {max(found)} tokens, {mean:.1f} on average; {options.rows} "
        "at once\n"
    )
    lines = [
        [
            "block",
            "empty at the end",
            "by the formula",
            "empty while rows grow",
            "reserved for the longest instead",
        ]
    ]
    for block in sorted({1, 2, 4, 8, 16, 32, chosen}):
        reserved = 1 - statistics.fmean(found) / max(found)
        lines.append([f"{block}{' (chosen)' if block == chosen else ''}", percent(measure_full_waste(found,
            block)), percent(estimate_waste(block, mean)),
                      percent(measure_growing_waste(found, block, options.rows)),
                          percent(reserved)])  # fmt: skip
    print(table(lines))


def token_counts(options: argparse.Namespace) -> list[int]:
    """How many tokens a decoder holds at the end of each line: those of the line, and the begin."""
    texts = lines_of(options.text)
    if options.run is not None:
        encoded = ph.load(options.run).tokenizer.encode(texts)
    else:
        made = TOKENIZER.build(Choice("bpe"), texts, options.vocabulary)
        encoded = [found.ids for found in made.encode_batch(texts, add_special_tokens=False)]
    return [len(ids) + 1 for ids in encoded]


def sharing(options: argparse.Namespace) -> None:
    """Pages that beams and parallel samples hold, against as many rows that share nothing."""
    run, given = ph.load(options.run), [line for line in lines_of(options.text) if line]
    texts = ["\n".join(given[i : i + options.join]) for i in range(0, len(given), options.join)]
    translates = run.config.kind == "encoder-decoder"
    sizes = [len(ids) for ids in run.tokenizer.encode(texts)]
    # a longer one would be read anew
    most = (run.config.max_len or max(sizes)) - (0 if translates else options.new_tokens)
    kept = [i for i, size in enumerate(sizes) if size <= most][: options.limit]
    texts, said = [texts[i] for i in kept], statistics.fmean(sizes[i] for i in kept)
    lines = [["decoding", "block", "saved at the peak", "saved on average", "most saved", "least saved"]]
    for way in list_setups(run):
        for block in (None, 2, 4, 8, 16):
            seen = [
                measure_sharing(run, text, way, block_size=block, new_tokens=options.new_tokens)
                for text in texts
            ]
            peaks, blocks = [one.peak for one in seen], {one.block_size for one in seen}
            chosen = f"{min(blocks)} to {max(blocks)} (chosen)" if block is None else str(block)
            lines.append([str(way), chosen, percent(statistics.fmean(peaks)),
                percent(statistics.fmean(one.mean for one in seen)),
                          percent(max(peaks)), percent(min(peaks))])  # fmt: skip
    print(
        f"{len(texts):,} texts of {said:.0f} tokens on average, one at a time; pages held against those of "
        "rows that share nothing\n"
    )
    print(table(lines))


def steps(options: argparse.Namespace) -> None:
    """Time of a decoding step with each cache, in turn; the numbers in the cache do not
    matter to the clock.
    """
    heads = options.width // 64
    config = ModelConfig(kind="decoder", vocab_size=1000, d_model=options.width, n_heads=heads,
        n_layers=options.layers,
                         n_decoder_layers=options.layers, d_ff=4 * options.width, position="rope",
                         max_len=4096)  # fmt: skip
    model = build(config, seed=0).eval()
    model = model if options.plain else pack_model(model)
    print(
        f"{options.layers} layers of {options.width}, fp32, {options.threads} threads, medians of "
        f"{options.rounds} rounds in turns\n"
    )
    choices = {name: Choice.from_config(parse_part(name)) for name in options.caches}
    lines = [["rows", "past", "cache", "ms", "more than the first", "MiB"]]
    for n in options.batches:
        for past in options.past:
            caches = {
                name: filled(model.cache_shape, choice, n, past, options.rounds + 8)
                for name, choice in choices.items()
            }
            at, tokens = dict.fromkeys(caches, past), torch.ones(n, 1, dtype=torch.long)

            def step(name: str, caches=caches, at=at, tokens=tokens, n=n) -> None:  # type: ignore[no-untyped-def]
                pos = torch.full((n, 1), at[name])
                at[name] += 1
                with torch.inference_mode():
                    if options.beams:  # half of the rows go on, each in two
                        caches[name].select(
                            torch.randperm(n, generator=torch.Generator().manual_seed(at[name]))[
                                torch.arange(n) // 2
                            ].tolist()
                        )
                    caches[name].prepare_step(range(n), pos)
                    model.decode(tokens, pos, caches[name], None)

            seconds = interleaved(
                {name: lambda name=name: step(name) for name in caches}, options.rounds, warmup=2
            )  # type: ignore[misc]
            for name, times in seconds.items():
                more = ratio(times, seconds[options.caches[0]]) - 1
                held = f"{caches[name].nbytes / 2**20:,.0f}"
                lines.append(
                    [
                        str(n),
                        str(past),
                        name,
                        f"{1000 * statistics.median(times):.1f}",
                        f"{100 * more:+.1f} %",
                        held,
                    ]
                )
            print("\n".join(map(" | ".join, lines[-len(caches) :])), flush=True)
    print("\n" + table(lines))


@torch.inference_mode()
def filled(shape: CacheShape, choice: Choice, n: int, past: int, more: int) -> Cache:
    """A cache of n rows that hold so many tokens, and have room for more; after a prompt they came a few at
    a time, as texts grow.
    """
    cache = make_cache(choice, shape, n, past + more)
    for pos in chunks(past, n):
        cache.prepare_step(range(n), pos)
        for layer in cache.layers:
            kv = torch.randn(n, shape.n_kv_heads, pos.size(1), shape.head_dim)
            held = layer.update(KV(kv, kv, pos[:, None]))
            if layer.weights_hook is not None:
                layer.weights_hook(torch.rand(*kv.shape[:3], held.k.size(2)))
    return cache


def chunks(past: int, n: int, prompt: int = 32, size: int = 8) -> Iterator[Tensor]:
    """Positions of n rows: a prompt, then a few at a time."""
    for first in (0, *range(prompt, past, size)):
        yield torch.arange(first, min(past, first + size if first else prompt)).expand(n, -1)


def lines_of(path: Path) -> list[str]:
    """The lines of a file."""
    return path.read_text(encoding="utf-8").strip("\n").split("\n")


def percent(share: float) -> str:
    """3.4 %."""
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
