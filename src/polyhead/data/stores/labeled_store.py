"""Tokenized labeled texts on disk, read through memory maps: built once, opened instantly."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polyhead.core.errors import prefix_errors
from polyhead.data.batching.encoder_inputs import EncoderBatch, collate_encoder_inputs, encode_texts
from polyhead.data.readers.files import fingerprint
from polyhead.data.readers.labeled import LabeledFiles, LabeledReport
from polyhead.data.readers.reader_common import count_problem, iter_chunks
from polyhead.data.stores.build_cache import IdArray, build_once, cache_dir, flat_writers, open_flat_file
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.unknown_tokens import UnknownTokens, count_unknown_ids

_LAYOUT = 2  # version of the file layout; another version makes another cache
_CHUNK = 4096  # texts tokenized at once
_DTYPES: dict[str, type[np.generic]] = {
    "ids": np.int32,
    "offsets": np.int64,
    "seconds": np.int32,
    "labels": np.int32,
    "lines": np.int64,
}


class LabeledStore:
    """Encoder inputs of labeled texts, special tokens included, in the order of the files."""

    def __init__(self, directory: Path, report: LabeledReport) -> None:
        self.directory, self.report = directory, report
        self.ids: IdArray = open_flat_file(directory / "ids.npy")
        self.offsets: IdArray = open_flat_file(directory / "offsets.npy")
        # start of the second text of each row
        self.second_starts: IdArray = open_flat_file(directory / "seconds.npy")
        self.labels: IdArray = open_flat_file(directory / "labels.npy")  # index of each row's label
        self.line_numbers: IdArray = open_flat_file(directory / "lines.npy")  # in the files, from 1
        self.lengths: IdArray = np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.labels)

    def row_tokens(self, index: int) -> IdArray:
        """The tokens of one row, as a view."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def collate(self, rows: IdArray | Sequence[int], pad_id: int) -> tuple[EncoderBatch, Tensor]:
        """Collate rows into an encoder batch, with their labels (B,)."""
        batch = collate_encoder_inputs(
            [self.row_tokens(int(row)) for row in rows], self.second_starts[rows], pad_id
        )
        return batch, torch.from_numpy(self.labels[rows].astype(np.int64))

    def count_unknown(self, tokenizer: Tokenizer) -> UnknownTokens:
        """Count the unknown tokens."""
        return count_unknown_ids(self.ids, tokenizer)

    @classmethod
    def open_or_build(
        cls,
        labeled_files: LabeledFiles,
        labels: Sequence[str],
        tokenizer: Tokenizer,
        cache: str | os.PathLike[str],
        *,
        max_len: int,
    ) -> LabeledStore:
        """Open the store of these files in the directory ``cache``; build it if missing or incomplete.

        Texts with other labels are left out, those of more than ``max_len`` tokens are cut; both are counted.
        """
        prints = [fingerprint(path) for path in labeled_files.files]
        rows = [
            labeled_files.format,
            labeled_files.text_columns,
            labeled_files.label_column,
            labeled_files.validation_fraction,
            labeled_files.is_validation,
        ]
        settings = [_LAYOUT, prints, tokenizer.sha256, rows, list(labels), max_len]
        directory = cache_dir(cache, "labelled", settings)
        write = partial(_write_store, labeled_files, labels, tokenizer, max_len)
        return cls(directory, build_once(directory, _DTYPES, LabeledReport, write))


def _write_store(
    labeled_files: LabeledFiles, labels: Sequence[str], tokenizer: Tokenizer, max_len: int, directory: Path
) -> LabeledReport:
    report = LabeledReport(labeled_files.source_label)
    numbers = {label: number for number, label in enumerate(labels)}
    with flat_writers(directory, _DTYPES) as out:
        out["offsets"].append([0])
        for chunk in iter_chunks(labeled_files.iter_examples(report, labels), _CHUNK):
            with prefix_errors("data.max_len"):
                rows = encode_texts([example.texts for example in chunk], tokenizer, max_len)
            for example, row in zip(chunk, rows, strict=True):
                if row.truncated:
                    count_problem(report, "truncated", example.location)
            out["offsets"].append([*accumulate((len(row.ids) for row in rows), initial=out["ids"].count)][1:])
            out["ids"].append([i for row in rows for i in row.ids])
            out["seconds"].append([row.second_start for row in rows])
            out["labels"].append([numbers[example.label] for example in chunk])
            out["lines"].append([example.line for example in chunk])
    return report
