"""Tokenized pairs of texts on disk, for embeddings: each row has an anchor, a positive and negatives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.core.errors import UserError
from polyhead.data.batching.encoder_inputs import EncoderBatch, EncoderInput, collate_encoder_inputs
from polyhead.data.readers.rows import iter_chunks
from polyhead.data.readers.text_pairs import TextPairReport, TextPairs
from polyhead.data.stores.build_cache import FlatWriter, IdArray, IdStore

_CHUNK = 4096  # pairs tokenized at once
EncodeTexts = Callable[[Sequence[str]], list[EncoderInput]]
"""Texts as the model reads them."""


class TextPairBatch(NamedTuple):
    """The M texts of N pairs: all anchors, all positives, all negatives; the pairs are in blocks."""

    inputs: EncoderBatch
    numbers: Tensor  # (M,) equal texts have equal numbers
    n_negatives: Tensor  # (N,)
    scores: Tensor  # (N,) nan without scores
    block_sizes: Tensor  # numbers of pairs


class TextPairStore(IdStore):
    """The tokens of all texts, special tokens included, with the first text of each pair and its score."""

    kind = "text-pairs"
    dtypes: ClassVar = {
        "ids": np.int32, "offsets": np.int64, "pair_offsets": np.int64, "scores": np.float64,
    }  # fmt: skip

    def __init__(self, directory: Path, report: TextPairReport) -> None:
        super().__init__(directory, report)
        _, self.offsets, self.pair_offsets, self.scores = self.arrays.values()
        self.is_scored = not np.isnan(self.scores).any()
        lengths = np.maximum.reduceat(np.diff(self.offsets), self.pair_offsets[:-1])
        # as if every pair had as many texts as the largest, so that no batch is larger than planned
        self.lengths = lengths * np.diff(self.pair_offsets).max()

    def text_tokens(self, text: int) -> bytes:
        """The tokens of a text, as a key."""
        return self.ids[self.offsets[text] : self.offsets[text + 1]].tobytes()

    def hash_texts(self) -> list[int]:
        """A hash of the anchor and the positive of each pair."""
        return [hash((self.text_tokens(i), self.text_tokens(i + 1))) for i in self.pair_offsets[:-1].tolist()]

    def order_texts(self, rows: IdArray) -> IdArray:
        """The texts of some pairs in the order of a batch: (M,)."""
        starts, ends = self.pair_offsets[rows], self.pair_offsets[rows + 1]
        negatives = [np.arange(start + 2, end) for start, end in zip(starts, ends, strict=True)]
        return np.concatenate([starts, starts + 1, *negatives])

    def list_relevant(self) -> tuple[list[int], list[int], list[list[int]]]:
        """The different anchors and the different other texts, as (N,) and (M,) numbers of texts, and for
        each anchor the places of its positives among the latter.
        """
        anchors: dict[bytes, int] = {}
        places: dict[bytes, int] = {}
        texts: list[int] = []
        positives: dict[bytes, set[int]] = {}
        for start, end in pairwise(self.pair_offsets.tolist()):
            anchor, *others = map(self.text_tokens, range(start, end))
            anchors.setdefault(anchor, start)
            for text, key in enumerate(others, start + 1):
                if key not in places:
                    places[key] = len(texts)
                    texts.append(text)
            positives.setdefault(anchor, set()).add(places[others[0]])
        return [*anchors.values()], texts, [sorted(found) for found in positives.values()]

    def collate(self, blocks: Sequence[IdArray], pad_id: int) -> TextPairBatch:
        """Collate pairs into one encoder batch of all their texts."""
        rows = np.concatenate(blocks)
        keys = [self.text_tokens(text) for text in self.order_texts(rows).tolist()]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        tokens = [np.frombuffer(key, dtype=self.ids.dtype) for key in keys]
        return TextPairBatch(
            collate_encoder_inputs(tokens, [len(ids) for ids in tokens], pad_id),
            torch.tensor([numbers[key] for key in keys]),
            torch.from_numpy(np.diff(self.pair_offsets)[rows] - 2),
            torch.from_numpy(self.scores[rows].astype(np.float32)),
            torch.tensor([*map(len, blocks)]),
        )


def open_text_pair_store(
    pairs: TextPairs, encode: EncodeTexts, key: object, cache: str | os.PathLike[str]
) -> TextPairStore:
    """Open the store of these files in the directory ``cache``; build it if missing or incomplete.

    ``key`` has the settings of ``encode``, as JSON.
    """
    split = [pairs.validation_fraction, bool(pairs.validation_fraction) and pairs.is_validation]
    settings = [pairs.format, [*pairs.columns_by_role.values()], split, key]

    def write(out: dict[str, FlatWriter], report: TextPairReport) -> None:
        n_scored = 0
        for chunk in iter_chunks(pairs.read(report), _CHUNK):
            rows = iter(encode([*chain.from_iterable(pair.texts for _, pair in chunk)]))
            for place, pair in chunk:
                texts = [next(rows) for _ in pair.texts]
                out["pair_offsets"].append([out["offsets"].count - 1 + len(texts)])
                out["ids"].append_rows([text.ids for text in texts], out["offsets"])
                out["scores"].append([np.nan if pair.score is None else pair.score])
                report.used += 1
                n_scored += pair.score is not None
                if any(text.truncated for text in texts):
                    report.count_problem("truncated", place)
        report.check_usable()
        if 0 < n_scored < report.used:
            raise UserError(
                f"{report.source_label}: {n_scored:,} of {report.used:,} pairs have a score: pairs with and "
                "without scores are learned by different losses; put them into files of their own"
            )

    return TextPairStore(*TextPairStore.build_rows(cache, pairs, settings, write))
