"""Of a large vocabulary the tokens that a source suggests: a head for these alone is a fraction of the work."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from polyhead.analysis.lexicon import lexicon
from polyhead.errors import UserError
from polyhead.files import replace_file
from polyhead.generate.decoder import Ints
from polyhead.nn.head import Head

FILE = "shortlist.safetensors"
PARTS = ("always", "first", "suggested")


class Shortlist(NamedTuple):
    """The tokens that may translate a token, and those that may stand in any text (Jean et al., 2015, sec. 3).

    A source suggests what its tokens do, and these themselves, for names are copied.
    """

    always: NDArray[np.int32]  # (A,) the most frequent tokens of targets
    first: NDArray[np.int64]  # (V + 1,) where those of each token begin
    suggested: NDArray[np.int32]  # of all tokens, one after the other

    @classmethod
    def learned(
        cls,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        vocab_size: int,
        *,
        each: int,
        always: int,
        needed: Sequence[int] = (),
    ) -> Shortlist:
        """From pairs of texts: ``each`` translations of a token at most, and so many of the most frequent; ``needed`` may always come."""
        first, suggested = lexicon(sources, targets, vocab_size).best(each, vocab_size)
        counts = np.bincount(
            np.concatenate([np.empty(0, np.int64), *map(np.asarray, targets)]).astype(np.int64)
        )
        often = (-counts).argsort(kind="stable")[: min(always, np.count_nonzero(counts))]
        return cls(np.union1d(often, needed).astype(np.int32), first, suggested.astype(np.int32))

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary that it is for."""
        return len(self.first) - 1

    def of(self, source: Sequence[int], needed: Sequence[int] = ()) -> Ints:
        """The tokens that a source suggests, and those that are needed, in ascending order."""
        own = [self.suggested[self.first[token] : self.first[token + 1]] for token in set(source)]
        return np.unique(np.concatenate([self.always, np.array([*source, *needed], np.int64), *own]))

    def save(self, directory: Path) -> None:
        """Write it into the directory of a run."""
        replace_file(directory / FILE, save(self._asdict()))

    @classmethod
    def load(cls, directory: Path, vocab_size: int) -> Shortlist | None:
        """That of a run, if it has one; a UserError where it is damaged or of another vocabulary."""
        path = directory / FILE
        if not path.is_file():
            return None
        try:
            with safe_open(path, "np") as file:
                found = cls(*(file.get_tensor(name) for name in PARTS))
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} is damaged or cut short, remove it and make another: {error}") from None
        _check(found, vocab_size, path)
        return found


def _check(found: Shortlist, vocab_size: int, path: Path) -> None:
    """A UserError where these are not the tokens of the model."""
    if found.vocab_size != vocab_size:
        raise UserError(
            f"{path} is for a vocabulary of {found.vocab_size:,} tokens, the model has {vocab_size:,}: remove it, and make another"
        )
    tokens = np.concatenate([found.always, found.suggested])
    steps = np.diff(found.first)
    whole = found.first[0] == 0 and found.first[-1] == len(found.suggested) and (steps >= 0).all()
    if not whole or (tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab_size):
        raise UserError(f"{path} is damaged: it names tokens that there are not; remove it, and make another")


def granted(read: Callable[[], Shortlist | None], wanted: bool | None, several: bool) -> Shortlist | None:
    """That of a run, where it is wanted; a UserError says why it cannot be had."""
    if not wanted:
        return None
    if several:
        raise UserError(
            "a shortlist is of one run, and several decide here: open one, or leave shortlist out"
        )
    if (found := read()) is None:
        raise UserError("this run has no shortlist; make one: polyhead shortlist RUN")
    return found


class Narrow:
    """A head for the tokens that some sources suggest; what only another source suggests gets -inf."""

    def __init__(self, head: Head, lists: Mapping[Hashable, Ints]) -> None:
        self.vocab_size, device = head.weight.shape[0], head.weight.device
        self.tokens = np.unique(np.concatenate(list(lists.values())))  # of the columns, ascending
        self.head = head.narrowed(torch.from_numpy(self.tokens).to(device))
        barred = np.full((len(lists), len(self.tokens)), -np.inf, np.float32)
        for row, own in zip(barred, lists.values(), strict=True):
            row[np.searchsorted(self.tokens, own)] = 0
        self.barred = torch.from_numpy(barred).to(device)
        self.row = {whose: row for row, whose in enumerate(lists)}

    def logits(self, x: Tensor, whose: Sequence[Hashable]) -> Tensor:
        """(N, E) -> (N, C): as many rows, one after the other, for each of those whose they are."""
        out: Tensor = self.head(x)
        if len(self.row) == 1:  # who is alone may say all of it
            return out
        barred = self.barred[[self.row[one] for one in whose]]
        return (out.view(len(whose), -1, out.size(-1)) + barred[:, None]).view_as(out)

    def places(self, tokens: Sequence[int]) -> list[int]:
        """The columns of those of the tokens that have one."""
        found = np.searchsorted(self.tokens, tokens)
        return [
            place
            for place, token in zip(found.tolist(), tokens, strict=True)
            if place < len(self.tokens) and self.tokens[place] == token
        ]

    def whole(self, logits: Tensor) -> Tensor:
        """(N, C) -> (N, V), with -inf for all tokens that have no column."""
        out = logits.new_full((len(logits), self.vocab_size), -torch.inf)
        out[:, torch.from_numpy(self.tokens).to(logits.device)] = logits
        return out
