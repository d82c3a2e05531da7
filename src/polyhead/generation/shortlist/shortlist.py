"""Lexical shortlist: a small output head for the likely translations of a source."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from polyhead.core.array_types import Ints
from polyhead.core.atomic_io import file_exists, replace_file
from polyhead.core.errors import UserError, is_command_line
from polyhead.nn.embedding import Head


class Lexicon(NamedTuple):
    """t(target | source) of tokens that occur in at least one pair, sorted by source, then target."""

    source: Ints
    target: Ints
    probability: NDArray[Any]

    def top_targets(self, n: int, vocab_size: int) -> tuple[Ints, Ints]:
        """The n most likely translations of each token, best first: offsets (V + 1,), and all of them."""
        order = np.lexsort((self.target, -self.probability, self.source))
        source = self.source[order]
        rank = np.arange(len(source)) - np.searchsorted(source, source)
        selection = order[(rank < n) & (source < vocab_size)]
        return np.searchsorted(self.source[selection], np.arange(vocab_size + 1)), self.target[selection]


def train_ibm_model1(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], vocab_size: int, iterations: int = 4
) -> Lexicon:
    """IBM Model 1 (Brown et al., 1993, sec. 4.1): each target token comes from one source token or from none.

    ``iterations`` rounds of expectation-maximisation from equal probabilities; the empty source token has
    number V.
    """
    cells = [_pair_cells(source, target, vocab_size) for source, target in zip(sources, targets, strict=True)]
    keys, cell = np.unique(np.concatenate([np.empty(0, np.int64), *cells]), return_inverse=True)
    # target tokens one after the other, each with the source tokens of its pair
    widths = np.repeat([len(source) + 1 for source in sources], [len(target) for target in targets])
    offsets = np.cumsum(widths) - widths
    source, target = keys // vocab_size, keys % vocab_size
    probability = np.ones(len(keys))
    for _ in range(iterations if len(keys) else 0):
        share = probability[cell]
        share /= np.repeat(np.add.reduceat(share, offsets), widths)
        counts = np.bincount(cell, share, len(keys))
        probability = counts / np.bincount(source, counts)[source]
    return Lexicon(source, target, probability)


def _pair_cells(source: Sequence[int], target: Sequence[int], vocab_size: int) -> Ints:
    """Pairs of each target token and each source token or the empty one, as one number each."""
    source_keys = np.array([*source, vocab_size], np.int64) * vocab_size
    return (np.array(target, np.int64)[:, None] + source_keys).ravel()


SHORTLIST_FILE = "shortlist.safetensors"
_TENSOR_NAMES = ("always", "first", "suggested")


class Shortlist(NamedTuple):
    """Likely translations of each token, and tokens that any text may contain (Jean et al., 2015, sec. 3).

    A source suggests the translations of its tokens, and its tokens themselves, because names are copied.
    """

    frequent: NDArray[np.int32]  # (A,) the most frequent target tokens
    offsets: NDArray[np.int64]  # (V + 1,) where the translations of each token begin
    candidates: NDArray[np.int32]  # translations of all tokens, one after the other

    @classmethod
    def from_pairs(
        cls,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        vocab_size: int,
        *,
        per_token: int,
        frequent: int,
        required_ids: Sequence[int] = (),
    ) -> Shortlist:
        """Build a shortlist from sentence pairs: at most ``per_token`` translations of a token.

        The ``frequent`` most frequent tokens and the ``required_ids`` are always allowed.
        """
        offsets, candidates = train_ibm_model1(sources, targets, vocab_size).top_targets(
            per_token, vocab_size
        )
        counts = np.bincount(
            np.concatenate([np.empty(0, np.int64), *map(np.asarray, targets)]).astype(np.int64)
        )
        frequent_ids = (-counts).argsort(kind="stable")[: min(frequent, np.count_nonzero(counts))]
        return cls(
            np.union1d(frequent_ids, required_ids).astype(np.int32), offsets, candidates.astype(np.int32)
        )

    @property
    def vocab_size(self) -> int:
        """Size of its vocabulary."""
        return len(self.offsets) - 1

    def select_ids(self, source: Sequence[int], required_ids: Sequence[int] = ()) -> Ints:
        """The tokens that a source suggests and the required ones, in ascending order."""
        translations = [
            self.candidates[self.offsets[token] : self.offsets[token + 1]] for token in set(source)
        ]
        return np.unique(
            np.concatenate([self.frequent, np.array([*source, *required_ids], np.int64), *translations])
        )

    def save(self, directory: Path) -> None:
        """Write the shortlist into the directory of a run."""
        replace_file(directory / SHORTLIST_FILE, save(dict(zip(_TENSOR_NAMES, self, strict=True))))

    @classmethod
    def load(cls, directory: Path, vocab_size: int) -> Shortlist | None:
        """The shortlist of a run, None without one; a UserError if it is damaged or of another vocabulary."""
        path = directory / SHORTLIST_FILE
        if not file_exists(path):
            return None
        try:
            with safe_open(path, "np") as file:
                shortlist = cls(*(file.get_tensor(name) for name in _TENSOR_NAMES))
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{path} is damaged or truncated, remove it and create a new one: {error}"
            ) from None
        _check_shortlist(shortlist, vocab_size, path)
        return shortlist


def _check_shortlist(shortlist: Shortlist, vocab_size: int, path: Path) -> None:
    """Raise a UserError if these are not tokens of the model."""
    if shortlist.vocab_size != vocab_size:
        raise UserError(
            f"{path} is for a vocabulary of {shortlist.vocab_size:,} tokens, the model has "
            f"{vocab_size:,}: remove it, and create a new one"
        )
    tokens = np.concatenate([shortlist.frequent, shortlist.candidates])
    steps = np.diff(shortlist.offsets)
    is_valid = (
        shortlist.offsets[0] == 0
        and shortlist.offsets[-1] == len(shortlist.candidates)
        and (steps >= 0).all()
    )
    if not is_valid or (tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab_size):
        raise UserError(f"{path} is damaged: it has invalid token ids; remove it, and create a new one")


def load_shortlist(
    load: Callable[[], Shortlist | None],
    enabled: bool | None,
    kind: str,
    is_ensemble: bool,
    directory: Path | None,
) -> Shortlist | None:
    """The shortlist of a run of this kind if ``enabled``; a UserError if there is none."""
    if not enabled:
        return None
    if kind != "encoder-decoder":
        raise UserError("a shortlist is for translation models: remove shortlist")
    if is_ensemble:
        raise UserError("a shortlist is for a single run, not an ensemble: load one run, or remove shortlist")
    if (shortlist := load()) is None:
        run = shlex.quote(str(directory or "RUN"))
        where = "" if is_command_line() else " with the shell command"
        raise UserError(f"this run has no shortlist; create one{where}: polyhead shortlist {run}")
    return shortlist


class ShortlistHead:
    """An output head for the union of several shortlists; tokens outside of a source's own get -inf."""

    def __init__(self, head: Head, token_lists: Mapping[Hashable, Ints]) -> None:
        self.vocab_size, device = head.weight.shape[0], head.weight.device
        self.tokens = np.unique(np.concatenate(list(token_lists.values())))  # of the columns, ascending
        self.head = head.for_tokens(torch.from_numpy(self.tokens).to(device))
        mask = np.full((len(token_lists), len(self.tokens)), -np.inf, np.float32)
        for row, tokens in zip(mask, token_lists.values(), strict=True):
            row[np.searchsorted(self.tokens, tokens)] = 0
        self.logit_mask = torch.from_numpy(mask).to(device)
        self.mask_rows = {owner: row for row, owner in enumerate(token_lists)}

    def compute_logits(self, x: Tensor, owners: Sequence[Hashable]) -> Tensor:
        """(N, E) -> (N, C): equally many consecutive rows for each owner of a shortlist."""
        out: Tensor = self.head(x)
        if len(self.mask_rows) == 1:  # a single owner may output every column
            return out
        mask = self.logit_mask[[self.mask_rows[owner] for owner in owners]]
        return (out.view(len(owners), -1, out.size(-1)) + mask[:, None]).view_as(out)

    def column_ids(self, tokens: Sequence[int]) -> list[int]:
        """The columns of those tokens that have one."""
        columns = np.searchsorted(self.tokens, tokens)
        return [
            column
            for column, token in zip(columns.tolist(), tokens, strict=True)
            if column < len(self.tokens) and self.tokens[column] == token
        ]

    def full_logits(self, logits: Tensor) -> Tensor:
        """(N, C) -> (N, V), with -inf for all tokens without a column."""
        out = logits.new_full((len(logits), self.vocab_size), -torch.inf)
        out[:, torch.from_numpy(self.tokens).to(logits.device)] = logits
        return out
