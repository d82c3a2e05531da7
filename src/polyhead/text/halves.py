"""Tokens written as two shorter ones that say the same, so that a model learns what its tokens are made of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyhead.errors import UserError
from polyhead.text.tokenizer import Tokenizer

Ints = NDArray[Any]


class Halves:
    """Every way in which each token of a vocabulary is two others, and a share of a text written so, drawn anew.

    A published tokenizer reads a text in one way. A model that meets its words in others too learns what is inside
    them, which helps where there is little text (Provilkov et al., 2020; token by token as here: Sims et al., 2025).
    """

    def __init__(self, tokenizer: Tokenizer, share: float) -> None:
        """``share`` of the tokens that can be two are. A vocabulary with no such token is a UserError."""
        found = _whole(tokenizer, sorted(_pairs(tokenizer)))
        if not len(found):
            raise UserError(
                "no token of this vocabulary is two others; leave token_split out, or learn a larger one"
            )
        self.share, self._pairs = share, found[:, 1:]
        self._first = np.searchsorted(found[:, 0], np.arange(tokenizer.vocab_size + 1))

    def __call__(self, ids: Ints, lengths: Ints, most: int) -> tuple[Ints, Ints]:
        """Rows of ids one after another and how many each has, the same for what is made of them.

        A row that would come to more than ``most`` stays as it is. Draws from torch's generator.
        """
        drawn, chosen = torch.rand(2, len(ids), dtype=torch.float64).numpy()
        ways, row = np.diff(self._first)[ids], np.repeat(np.arange(len(lengths)), lengths)
        split = (drawn < self.share) & (ways > 0)
        longer = lengths + np.bincount(row[split], minlength=len(lengths))
        split &= (longer <= most)[row]
        pairs = self._pairs[self._first[ids[split]] + (chosen[split] * ways[split]).astype(np.int64)]
        out = np.repeat(ids, 1 + split)
        place = np.flatnonzero(split) + np.arange(len(pairs))
        out[place], out[place + 1] = pairs[:, 0], pairs[:, 1]
        return out, np.where(longer <= most, longer, lengths)


def _pairs(tokenizer: Tokenizer) -> Iterator[tuple[int, int, int]]:
    """Each token with two that are spelled as it is."""
    rules = json.loads(tokenizer.rules)["model"]
    inside = rules.get("continuing_subword_prefix") or ""
    names = tokenizer.tokens(range(tokenizer.vocab_size))
    special = set(tokenizer.special_ids)
    ids = {name: i for i, name in enumerate(names) if name and i not in special}
    for name, token in ids.items():
        for cut in range(1, len(name)):
            first, second = ids.get(name[:cut]), ids.get(inside + name[cut:])
            if first is not None and second is not None:
                yield token, first, second


def _whole(tokenizer: Tokenizer, found: list[tuple[int, int, int]]) -> Ints:
    """Those that say what the token says: the name of a byte, such as <0x41>, is no text."""
    one, two = (tokenizer.decode(part) for part in ([[row[0]] for row in found], [row[1:] for row in found]))
    kept = [row for row, a, b in zip(found, one, two, strict=True) if a == b]
    return np.array(kept, dtype=np.int64).reshape(-1, 3)
