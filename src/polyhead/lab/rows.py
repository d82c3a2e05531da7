"""Texts as a decoder is led through them: windows of a language model's text, pairs of a translator's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.data.collate import collate_pairs
from polyhead.errors import UserError
from polyhead.generate.frame import frame
from polyhead.lab.subject import Subject
from polyhead.nn.kv import whole
from polyhead.nn.loss import IGNORED
from polyhead.text.sides import between


class Rows(NamedTuple):
    """Texts that a decoder is led through: N of them, T tokens each; a translator's with sources of S tokens."""

    read: Tensor  # (N, T)
    pos: Tensor  # (N, T), -1 at padding
    wanted: Tensor  # (N, T) the token that comes next, IGNORED at padding
    source: Tensor | None = None  # (N, S)
    source_pos: Tensor | None = None  # (N, S)

    def some(self, these: slice) -> Rows:
        """Some of the texts."""
        return Rows(
            self.read[these],
            self.pos[these],
            self.wanted[these],
            *(x if x is None else x[these] for x in self[3:]),
        )

    def batches(self, n: int) -> Iterator[Rows]:
        """n texts at a time."""
        for i in range(0, len(self.read), n):
            yield self.some(slice(i, i + n))


def rows(given: Subject, n: int, width: int) -> Rows:
    """The first n texts as a decoder is led through them: of a language model windows of ``width`` tokens, side by side.

    Of a translator they are the references, or else what it says itself by greedy search; pairs with a side of more than
    ``width`` tokens are left out.
    """
    return pairs(given, n, width) if given.translates else windows(given, n, width)


def windows(given: Subject, n: int, width: int) -> Rows:
    """As ``rows``, for a language model: as many windows as the text gives, n at the most, two at least."""
    tokenizer, around = given.run.tokenizer, frame(given.run.recipe, given.run.tokenizer)
    begin = around.begin if around.always else []
    mark = [tokenizer.eos_id] if given.marked else []
    own, ids = width + 1 - len(begin), list[int]()
    for document in given.texts:
        ids += [*mark, *tokenizer.encode([document])[0]]
        if len(ids) >= n * own:
            break
    if len(ids) < 2 * own:
        raise UserError(f"the text has {len(ids):,} tokens; wanted at least two windows of {own}")
    found = torch.tensor([[*begin, *ids[i : i + own]] for i in range(0, len(ids) - own + 1, own)][:n])
    return Rows(found[:, :-1], whole(width, found.device).expand(len(found), -1), found[:, 1:])


def pairs(given: Subject, n: int, width: int) -> Rows:
    """As ``rows``, for a translator."""
    tokenizer, sources = given.run.tokenizer, given.texts[:n]
    targets = given.references[:n] or given.run.translate(sources, beam_size=1, truncate=True)
    room = width - between(tokenizer).most
    sides = zip(tokenizer.encode(sources), tokenizer.target.encode(targets), strict=True)
    kept = [(a, b) for a, b in sides if max(len(a), len(b)) <= room]
    if len(kept) < 2:
        raise UserError(f"the text has {len(kept)} pairs of at most {room} tokens a side; wanted 2 at least")
    batch = collate_pairs([a for a, _ in kept], [b for _, b in kept], tokenizer)
    lengths = (batch.labels != IGNORED).sum(1, keepdim=True)
    pos = whole(batch.labels.size(1), lengths.device)
    return Rows(
        batch.target, torch.where(pos < lengths, pos, -1), batch.labels, batch.source, batch.source_pos
    )
