"""Tokenized texts with labeled spans, or with answers, on disk: windows of tokens, each with its labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyhead.core.errors import prefix_errors
from polyhead.data.batching.encoder_inputs import EncoderBatch, EncoderInput
from polyhead.data.batching.windows import encode_question, encode_windows, label_answer, label_words
from polyhead.data.readers.labeled import LabeledExample, LabeledFiles, LabeledReport
from polyhead.data.stores.build_cache import FlatWriter, IdArray
from polyhead.data.stores.labeled_store import LabeledStore
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer


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
