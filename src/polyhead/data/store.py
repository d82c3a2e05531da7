"""A tokenised corpus on disk, read through memory maps: made once, opened in an instant, larger than memory."""

from __future__ import annotations

import os
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np

from polyhead.data.arrays import Ints, flat_files, open_flat
from polyhead.data.built import home, whole
from polyhead.data.corpus import Corpus, CorpusReport, Pair
from polyhead.data.files import fingerprint
from polyhead.data.reading import check_usable, chunks, count
from polyhead.errors import UserError
from polyhead.text.sides import Sides
from polyhead.text.tokenizer import Tokenizer

LAYOUT = 1  # of the files of a cache; another number makes another cache
CHUNK = 4096  # pairs tokenised at once
DTYPES: dict[str, type[np.generic]] = {
    "source": np.int32,
    "source_offsets": np.int64,
    "target": np.int32,
    "target_offsets": np.int64,
    "lines": np.int64,
}


class PairStore:
    """Token ids of all pairs of a corpus that fit, without special tokens, in the order of the corpus.

    ``source_lengths`` and ``target_lengths`` are what a row takes in a batch: its tokens and the special ones that stand
    around them there, mostly one a side (end of the source; start of the decoder input, end of the labels).
    """

    def __init__(self, directory: Path, report: CorpusReport, max_len: int, sides: Sides) -> None:
        self.directory, self.report, self.max_len = directory, report, max_len
        flat = {name: open_flat(directory / f"{name}.npy") for name in DTYPES}
        self.source_ids, self.source_offsets = flat["source"], flat["source_offsets"]
        self.target_ids, self.target_offsets = flat["target"], flat["target_offsets"]
        self.lines = flat["lines"]  # of the corpus, from 1
        of_source, of_target = sides.added
        self.source_lengths: Ints = np.diff(self.source_offsets) + of_source
        self.target_lengths: Ints = np.diff(self.target_offsets) + of_target

    def __len__(self) -> int:
        return len(self.lines)

    def source(self, row: int) -> Ints:
        """The token ids of one source, a view."""
        return self.source_ids[self.source_offsets[row] : self.source_offsets[row + 1]]

    def target(self, row: int) -> Ints:
        """The token ids of one target, a view."""
        return self.target_ids[self.target_offsets[row] : self.target_offsets[row + 1]]

    @classmethod
    def open_or_build(
        cls,
        corpus: Corpus,
        tokenizer: Tokenizer,
        cache: str | os.PathLike[str],
        *,
        max_len: int,
    ) -> PairStore:
        """The store of a corpus under the directory ``cache``; made if it is not there or not whole.

        Its name is a digest of the text, the tokenizer and the settings, so a changed input is another store.
        ``max_len`` counts the tokens of a side with its end; longer pairs are skipped and counted.
        """
        if max_len < 2:
            raise UserError(f"max_len is {max_len}; a sentence of one token and its end need 2")
        settings = {
            "layout": LAYOUT,
            "files": [fingerprint(path) for path in corpus.files],
            "tokenizer": tokenizer.sha256,
            "max_len": max_len,
            "format": corpus.format,
            "columns": [corpus.source, corpus.target],
            **({"share": [corpus.share, corpus.held]} if corpus.share else {}),
        }
        directory = home(cache, "pairs", settings)
        write = partial(_write, corpus, tokenizer, max_len)
        return cls(directory, whole(directory, DTYPES, CorpusReport, write), max_len, tokenizer.sides)


def _write(corpus: Corpus, tokenizer: Tokenizer, max_len: int, directory: Path) -> CorpusReport:
    report = CorpusReport(corpus.where)
    with flat_files(directory, DTYPES) as out:
        for side in ("source", "target"):
            out[f"{side}_offsets"].append([0])
        for chunk in chunks(corpus.pairs(report), CHUNK):
            encoded = zip(
                chunk,
                tokenizer.encode([pair.source for pair in chunk]),
                tokenizer.target.encode([pair.target for pair in chunk]),
                strict=True,
            )
            rows = [row for row in encoded if _fits(*row, max_len, report)]
            for side, ids in (("source", [row[1] for row in rows]), ("target", [row[2] for row in rows])):
                out[f"{side}_offsets"].append([*accumulate(map(len, ids), initial=out[side].count)][1:])
                out[side].append([i for row in ids for i in row])
            out["lines"].append([pair.line for pair, _, _ in rows])
        check_usable(report, "pair", f" (max_len is {max_len} tokens)")
    return report


def _fits(pair: Pair, source: list[int], target: list[int], max_len: int, report: CorpusReport) -> bool:
    """Whether a pair stays; the report, which has counted it as kept, is put right if not."""
    longest, shortest = max(len(source), len(target)), min(len(source), len(target))
    if shortest > 0 and longest < max_len:
        return True
    report.kept -= 1
    count(report, "overlong" if longest >= max_len else "blank", pair.place)
    return False
