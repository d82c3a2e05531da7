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

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.choice import Choice
from polyhead.data.readers.parallel_corpus import open_corpus, read_pairs
from polyhead.generation.batch_decode import decode_sources
from polyhead.generation.shortlist.shortlist import Shortlist
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.models import Seq2Seq, build, preset_config
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer


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
    tune_malloc()
    corpus = open_corpus([options.source, options.target])
    texts, translations, _ = read_pairs(corpus, options.pairs + options.lines)
    tokenizer = train_tokenizer(chain(texts, translations), Choice("bpe"), options.vocab_size)
    sources, targets = tokenizer.encode(texts), tokenizer.encode(translations)
    lines, V = sources[-options.lines :], tokenizer.vocab_size
    shortlist = Shortlist.from_pairs(
        sources[: options.pairs], targets[: options.pairs], V, per_token=options.each, frequent=100, required_ids=[tokenizer.eos_id]
    )  # fmt: skip
    print(f"{V:,} tokens; lines of {sum(map(len, lines)) / len(lines):.0f}, of which each suggests "
          f"{sum(len(shortlist.select_ids(line)) for line in lines) / len(lines):,.0f}")  # fmt: skip
    rows = [["weights", "lines together", "beams", "ms a line", "with the shortlist", "faster by"]]
    for dtype in ("fp32", "int8"):
        model = pack_model(build(preset_config(options.preset, vocab_size=V)).eval(), linear_factory(dtype))
        assert isinstance(model, Seq2Seq)
        for together in (1, len(lines)):
            for beam in (1, options.beam):
                calls = {
                    way: partial(translate, model, tokenizer, lines, beam, together, some)
                    for way, some in (("all", None), ("some", shortlist))
                }
                seconds = interleaved(calls, options.n_rounds)
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
        found = decode_sources(
            model, some, config, seq2seq_template=tokenizer.seq2seq_template, max_len=512, bad_token_ids=[tokenizer.eos_id], shortlist=shortlist
        )  # fmt: skip
        assert len(list(found)) == len(some)


if __name__ == "__main__":
    main()
