"""Translating with a shortlist and without, paired in one run.

python benchmarks/shortlist.py train.en train.de       the base size of the literature, a vocabulary of 32,000 of this text

Vocabulary and shortlist are learned from the text. The weights are random, and every output goes to its greatest length, so only
speed differs; what a shortlist changes in translations is told by polyhead shortlist RUN, and by polyhead eval RUN --shortlist.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from timing import interleaved, ratio, table

from polyhead.data.corpus import open_corpus, read_pairs
from polyhead.fast.memory import tune_memory
from polyhead.fast.pack import packed, product_of
from polyhead.generate.search import search
from polyhead.generate.shortlist import Shortlist
from polyhead.generation_section import GenerationConfig
from polyhead.models import Seq2Seq, build, preset
from polyhead.registry import Choice
from polyhead.text.learn import train_tokenizer
from polyhead.text.tokenizer import Tokenizer


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--preset", default="base", help="sizes (default: base)")
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--pairs", type=int, default=50000, help="pairs that are learned from")
    parser.add_argument("--each", type=int, default=50, help="tokens that a source token suggests")
    parser.add_argument("--lines", type=int, default=32, help="lines that are translated")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tune_memory()
    corpus = open_corpus([options.source, options.target])
    texts, translations, _ = read_pairs(corpus, options.pairs + options.lines)
    tokenizer = train_tokenizer(chain(texts, translations), Choice("bpe"), options.vocab_size)
    sources, targets = tokenizer.encode(texts), tokenizer.encode(translations)
    lines, V = sources[-options.lines :], tokenizer.vocab_size
    shortlist = Shortlist.learned(
        sources[: options.pairs], targets[: options.pairs], V, each=options.each, always=100, needed=[tokenizer.eos_id]
    )  # fmt: skip
    print(f"{V:,} tokens; lines of {sum(map(len, lines)) / len(lines):.0f}, of which each suggests "
          f"{sum(len(shortlist.of(line)) for line in lines) / len(lines):,.0f}")  # fmt: skip
    rows = [["weights", "lines together", "beams", "ms a line", "with the shortlist", "faster by"]]
    for dtype in ("fp32", "int8"):
        model = packed(build(preset(options.preset, vocab_size=V)).eval(), product_of(dtype))
        assert isinstance(model, Seq2Seq)
        for together in (1, len(lines)):
            for beam in (1, options.beam):
                calls = {
                    way: partial(translate, model, tokenizer, lines, beam, together, some)
                    for way, some in (("all", None), ("some", shortlist))
                }
                seconds = interleaved(calls, options.rounds)
                each = [f"{1000 * min(seconds[way]) / len(lines):.1f}" for way in calls]
                faster = f"{ratio(seconds['all'], seconds['some']):.2f}"
                rows.append([dtype, str(together), str(beam), *each, faster])
                print(rows[-1], flush=True)
    print(table(rows))


def translate(
    model: Seq2Seq,
    tokenizer: Tokenizer,
    lines: list[list[int]],
    beam: int,
    together: int,
    shortlist: Shortlist | None,
) -> None:
    """Every output as long as its source and two more; so many lines at a time."""
    config = GenerationConfig(beam_size=beam, max_length_ratio=1.0, max_length_extra=2, batch_tokens=2**20)
    for first in range(0, len(lines), together):
        some = lines[first : first + together]
        found = search(
            model, some, config, sides=tokenizer.sides, max_len=512, forbidden=[tokenizer.eos_id], shortlist=shortlist
        )  # fmt: skip
        assert len(list(found)) == len(some)


if __name__ == "__main__":
    main()
