"""Tokenized labeled texts on disk, read through memory maps: whole texts, or windows with labeled tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyhead.core.errors import prefix_errors
from polyhead.data.batching.encoder_inputs import (
    EncoderBatch,
    EncoderInput,
    collate_encoder_inputs,
    encode_texts,
)
from polyhead.data.batching.windows import encode_question, encode_windows, label_answer, label_words
from polyhead.data.readers.labeled import LabeledExample, LabeledFiles, LabeledReport, LabelKind
from polyhead.data.readers.rows import iter_chunks
from polyhead.data.stores.build_cache import FlatWriter, IdArray, IdStore
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer

_CHUNK = 4096  # texts tokenized at once


class LabeledStore(IdStore):
    """Encoder inputs of labeled texts, special tokens included, in the order of the files."""

    kind, layout = "labelled", 2
    dtypes: ClassVar = {
        "ids": np.int32,
        "offsets": np.int64,
        "seconds": np.int32,
        "labels": np.int32,
        "lines": np.int64,
        "label_offsets": np.int64,
        "numbers": np.float64,
    }

    def __init__(self, directory: Path, report: LabeledReport, kind: LabelKind, n_labels: int) -> None:
        super().__init__(directory, report)
        # start of the second text and index of the label of each row, and its line in the files, from 1
        _, self.offsets, self.second_starts, self.labels, self.line_numbers = [*self.arrays.values()][:5]
        self.kind_of_label, self.n_labels = kind, n_labels
        self.lengths = np.diff(self.offsets)

    def targets(self, rows: IdArray | Sequence[int]) -> NDArray[Any]:
        """The class of each row (B,), 1 for each of its labels and 0 else (B, L), or its number (B, 1)."""
        rows = np.asarray(rows)
        if self.kind_of_label == "class":
            return np.asarray(self.labels[rows], dtype=np.int64)
        if self.kind_of_label == "number":
            return np.asarray(self.arrays["numbers"][rows], dtype=np.float32)[:, None]
        targets = np.zeros((len(rows), self.n_labels), dtype=np.float32)
        for target, row in zip(targets, rows, strict=True):
            target[self.labels[slice(*self.arrays["label_offsets"][row : row + 2])]] = 1
        return targets

    def row_tokens(self, index: int) -> IdArray:
        """The tokens of one row, as a view."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def hash_texts(self) -> list[int]:
        """A hash of the text, or of the pair of texts, of each row."""
        seconds = self.second_starts.tolist()
        return [hash((self.row_tokens(row).tobytes(), second)) for row, second in enumerate(seconds)]

    def collate(self, rows: IdArray | Sequence[int], pad_id: int) -> tuple[EncoderBatch, Tensor]:
        """Collate rows into an encoder batch, with their ``targets``."""
        return self.collate_inputs(rows, pad_id), torch.from_numpy(self.targets(rows))

    def collate_inputs(self, rows: IdArray | Sequence[int], pad_id: int) -> EncoderBatch:
        """Collate rows into an encoder batch."""
        tokens = [self.row_tokens(int(row)) for row in rows]
        return collate_encoder_inputs(tokens, self.second_starts[rows], pad_id)

    @classmethod
    def open_or_build(
        cls,
        labeled_files: LabeledFiles,
        labels: Sequence[str],
        tokenizer: Tokenizer,
        cache: str | os.PathLike[str],
        *,
        max_len: int,
    ) -> Self:
        """Open the store of these files in the directory ``cache``; build it if missing or incomplete.

        Texts with other labels are left out, those of more than ``max_len`` tokens are cut; both are counted.
        """
        *texts, label = labeled_files.columns_by_role.values()
        split = [labeled_files.validation_fraction, labeled_files.is_validation]
        rows, kind = [labeled_files.format, texts, label, *split], labeled_files.kind
        settings = [tokenizer.sha256, rows, list(labels), max_len, *([kind] if kind != "class" else [])]
        write = partial(cls.write_rows, labeled_files, labels, tokenizer, max_len)
        return cls(*cls.build_rows(cache, labeled_files, settings, write), kind, len(labels))

    @staticmethod
    def write_rows(
        labeled_files: LabeledFiles,
        labels: Sequence[str],
        tokenizer: Tokenizer,
        max_len: int,
        out: dict[str, FlatWriter],
        report: LabeledReport,
    ) -> None:
        """Write the rows of all texts."""
        numbers = {label: number for number, label in enumerate(labels)}
        for chunk in iter_chunks(labeled_files.iter_examples(report, labels), _CHUNK):
            with prefix_errors("data.max_len"):
                rows = encode_texts([example.texts for example in chunk], tokenizer, max_len)
            for example, row in zip(chunk, rows, strict=True):
                if row.truncated:
                    report.count_problem("truncated", example.location)
            out["ids"].append_rows([row.ids for row in rows], out["offsets"])
            out["seconds"].append([row.second_start for row in rows])
            if labeled_files.kind == "class":
                out["labels"].append([numbers[example.label] for example in chunk])
            elif labeled_files.kind == "labels":
                ids = [[numbers[label] for label in example.labels] for example in chunk]
                out["labels"].append_rows(ids, out["label_offsets"])
            else:
                out["numbers"].append([example.number for example in chunk])
            out["lines"].append([example.line for example in chunk])


class SpanStore(LabeledStore):
    """Windows of texts in the order of the files; ``labels`` has a tag for each token.

    The tag is IGNORE_INDEX unless the token is the first of a word that the window labels. The number of a
    word is one more than that of the word before if both are in one text. The labels of windows with answers
    are those of ``label_answer``.
    """

    kind = "spans"
    dtypes: ClassVar = {
        "ids": np.int32, "offsets": np.int64, "seconds": np.int32, "labels": np.int32, "lines": np.int64,
        "words": np.int64, "hashes": np.int64,
    }  # fmt: skip

    def targets(self, rows: IdArray | Sequence[int]) -> NDArray[Any]:
        """The tag, the number and the hash of each word of some rows: (N, 3)."""
        spans = [slice(*self.offsets[int(row) : int(row) + 2]) for row in rows]
        arrays = self.labels, self.arrays["words"], self.arrays["hashes"]
        columns = np.concatenate([np.stack([array[i] for array in arrays], 1) for i in spans])
        return columns[columns[:, 0] != IGNORE_INDEX].astype(np.int64)

    def collate(self, rows: IdArray | Sequence[int], pad_id: int) -> tuple[EncoderBatch, Tensor]:
        """Collate rows into an encoder batch, with the tag of each token: (B, T)."""
        batch = self.collate_inputs(rows, pad_id)
        tags = torch.full(batch.tokens.shape, IGNORE_INDEX)
        for target, row in zip(tags, rows, strict=True):
            labels = self.labels[slice(*self.offsets[row : row + 2])]
            target[: len(labels)] = torch.from_numpy(labels.astype(np.int64))
        return batch, tags

    @staticmethod
    def write_rows(
        labeled_files: LabeledFiles,
        labels: Sequence[str],
        tokenizer: Tokenizer,
        max_len: int,
        out: dict[str, FlatWriter],
        report: LabeledReport,
    ) -> None:
        """Write the windows of all texts; ``labels`` are the tags."""
        examples = labeled_files.iter_examples(report, labels)
        iter_rows = _iter_answer_rows if labeled_files.kind == "answers" else _iter_tag_rows
        for line, row, columns in iter_rows(examples, labels, tokenizer, max_len):
            out["ids"].append_rows([row.ids], out["offsets"])
            for name, values in zip(("labels", "words", "hashes"), columns.T, strict=True):
                out[name].append(values)
            out["seconds"].append([row.second_start])
            out["lines"].append([line])


LabeledRow = tuple[int, EncoderInput, NDArray[Any]]
"""The line of a text, a window of it, and label, number and hash of each of its tokens: (T, 3)."""


def _iter_tag_rows(
    examples: Iterator[LabeledExample], labels: Sequence[str], tokenizer: Tokenizer, max_len: int
) -> Iterator[LabeledRow]:
    first_word = 0
    for example in examples:
        with prefix_errors("data.max_len"):
            units, windows = encode_windows(example.texts[0], tokenizer, max_len)
        targets = label_words(example, units, labels, first_word)
        for window in windows:
            columns = np.full((len(window.row.ids), 3), IGNORE_INDEX)
            for word, column in window.iter_words(units):
                columns[column] = targets[word]
            yield example.line, window.row, columns
        first_word += len(targets) + 1


def _iter_answer_rows(
    examples: Iterator[LabeledExample], labels: Sequence[str], tokenizer: Tokenizer, max_len: int
) -> Iterator[LabeledRow]:
    for example in examples:
        with prefix_errors("data.max_len"):
            starts, windows = encode_question(example.texts, tokenizer, max_len)
        for window in windows:
            answer = label_answer(example.spans, starts, window)
            yield example.line, window.row, np.stack([answer, *np.zeros_like([answer, answer])], 1)
