"""Token splitting (subword regularisation): replace random tokens by two shorter ones with the same text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyhead.core.errors import UserError
from polyhead.tokenizers.tokenizer import Tokenizer

_IdArray = NDArray[Any]


class TokenSplitter:
    """All splits of each token into two others of the vocabulary; a call samples tokens and splits them.

    A published tokenizer has one segmentation per text. A model that is trained on other segmentations too
    learns the composition of words, which helps with little text (Provilkov et al., 2020; token by token as
    here: Sims et al., 2025).
    """

    def __init__(self, tokenizer: Tokenizer, fraction: float) -> None:
        """``fraction`` of the splittable tokens are split; UserError if the vocabulary has none."""
        splits = _filter_exact(tokenizer, sorted(_find_splits(tokenizer)))
        if not len(splits):
            raise UserError(
                "no token of this vocabulary consists of two others; remove token_split, or train "
                "a larger vocabulary"
            )
        self.fraction, self._pairs = fraction, splits[:, 1:]
        self._offsets = np.searchsorted(splits[:, 0], np.arange(tokenizer.vocab_size + 1))

    def __call__(self, ids: _IdArray, lengths: _IdArray, max_len: int) -> tuple[_IdArray, _IdArray]:
        """Split random tokens: concatenated ids of rows and row lengths -> the same of the result.

        A row that would exceed ``max_len`` is not changed. Samples from torch's global generator.
        """
        split_draws, choice_draws = torch.rand(2, len(ids), dtype=torch.float64).numpy()
        num_splits, row = np.diff(self._offsets)[ids], np.repeat(np.arange(len(lengths)), lengths)
        split = (split_draws < self.fraction) & (num_splits > 0)
        new_lengths = lengths + np.bincount(row[split], minlength=len(lengths))
        split &= (new_lengths <= max_len)[row]
        pairs = self._pairs[
            self._offsets[ids[split]] + (choice_draws[split] * num_splits[split]).astype(np.int64)
        ]
        out = np.repeat(ids, 1 + split)
        first_index = np.flatnonzero(split) + np.arange(len(pairs))
        out[first_index], out[first_index + 1] = pairs[:, 0], pairs[:, 1]
        return out, np.where(new_lengths <= max_len, new_lengths, lengths)


def _find_splits(tokenizer: Tokenizer) -> Iterator[tuple[int, int, int]]:
    """Triples of a token and two tokens whose concatenated spelling is the same."""
    rules = json.loads(tokenizer.tokenizer_json)["model"]
    inner_prefix = rules.get("continuing_subword_prefix") or ""
    names = tokenizer.ids_to_tokens(range(tokenizer.vocab_size))
    special = set(tokenizer.special_ids)
    ids = {name: i for i, name in enumerate(names) if name and i not in special}
    for name, token in ids.items():
        for cut in range(1, len(name)):
            first, second = ids.get(name[:cut]), ids.get(inner_prefix + name[cut:])
            if first is not None and second is not None:
                yield token, first, second


def _filter_exact(tokenizer: Tokenizer, splits: list[tuple[int, int, int]]) -> _IdArray:
    """The splits that decode to the text of the token; names of byte tokens such as <0x41> are not text."""
    whole_texts, pair_texts = (
        tokenizer.decode(part) for part in ([[row[0]] for row in splits], [row[1:] for row in splits])
    )
    exact = [row for row, a, b in zip(splits, whole_texts, pair_texts, strict=True) if a == b]
    return np.array(exact, dtype=np.int64).reshape(-1, 3)
