"""Labelled texts as tokens on disk, read through memory maps: made once, opened in an instant."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polyhead.data.arrays import Ints, flat_files, open_flat
from polyhead.data.built import home, whole
from polyhead.data.files import fingerprint
from polyhead.data.framed import FramedBatch, collate_framed, framed_texts
from polyhead.data.labelled import Labelled, LabelledReport
from polyhead.data.reading import chunks, count
from polyhead.errors import at
from polyhead.text.tokenizer import Tokenizer

LAYOUT = 2  # of the files of a cache; another number makes another cache
CHUNK = 4096  # texts tokenised at once
DTYPES: dict[str, type[np.generic]] = {
    "ids": np.int32,
    "offsets": np.int64,
    "seconds": np.int32,
    "labels": np.int32,
    "lines": np.int64,
}


class LabelledStore:
    """The rows of labelled texts as an encoder reads them, special tokens included, in the order of the files."""

    def __init__(self, directory: Path, report: LabelledReport) -> None:
        self.directory, self.report = directory, report
        self.ids: Ints = open_flat(directory / "ids.npy")
        self.offsets: Ints = open_flat(directory / "offsets.npy")
        self.seconds: Ints = open_flat(directory / "seconds.npy")  # where the second text of each row begins
        self.labels: Ints = open_flat(directory / "labels.npy")  # the number of each row's label
        self.lines: Ints = open_flat(directory / "lines.npy")  # of the files, from 1
        self.lengths: Ints = np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.labels)

    def row(self, number: int) -> Ints:
        """The tokens of one row, a view."""
        return self.ids[self.offsets[number] : self.offsets[number + 1]]

    def batch(self, rows: Ints | Sequence[int], pad_id: int) -> tuple[FramedBatch, Tensor]:
        """Some rows padded to one width, and their labels (B,)."""
        given = collate_framed([self.row(int(row)) for row in rows], self.seconds[rows], pad_id)
        return given, torch.from_numpy(self.labels[rows].astype(np.int64))

    @classmethod
    def open_or_build(
        cls,
        labelled: Labelled,
        labels: Sequence[str],
        tokenizer: Tokenizer,
        cache: str | os.PathLike[str],
        *,
        max_len: int,
    ) -> LabelledStore:
        """The store of some files under the directory ``cache``; made if it is not there or not whole.

        Texts of other labels are left out, those of more than ``max_len`` tokens cut; both are counted.
        """
        prints = [fingerprint(path) for path in labelled.files]
        rows = [labelled.format, labelled.text, labelled.label, labelled.share, labelled.held]
        settings = [LAYOUT, prints, tokenizer.sha256, rows, list(labels), max_len]
        directory = home(cache, "labelled", settings)
        write = partial(_write, labelled, labels, tokenizer, max_len)
        return cls(directory, whole(directory, DTYPES, LabelledReport, write))


def _write(
    labelled: Labelled, labels: Sequence[str], tokenizer: Tokenizer, max_len: int, directory: Path
) -> LabelledReport:
    report = LabelledReport(labelled.where)
    numbers = {label: number for number, label in enumerate(labels)}
    with flat_files(directory, DTYPES) as out:
        out["offsets"].append([0])
        for chunk in chunks(labelled.examples(report, labels), CHUNK):
            with at("data.max_len"):
                rows = framed_texts([example.texts for example in chunk], tokenizer, max_len)
            for example, row in zip(chunk, rows, strict=True):
                if row.cut:
                    count(report, "cut", example.place)
            out["offsets"].append([*accumulate((len(row.ids) for row in rows), initial=out["ids"].count)][1:])
            out["ids"].append([i for row in rows for i in row.ids])
            out["seconds"].append([row.second for row in rows])
            out["labels"].append([numbers[example.label] for example in chunk])
            out["lines"].append([example.line for example in chunk])
    return report
