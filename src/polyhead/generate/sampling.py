"""Rules for drawing the next token: pure steps from logits (N, V) to logits, and a draw that batches cannot change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyhead.errors import UserError

NEVER = float("-inf")
COLD = 1e-5  # a temperature below is 0: logits divided by it are not finite


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. Temperature 0 takes the likeliest, and then the rest has no effect but penalties.

    Steps are applied in this order: repetition penalty, temperature, top_k, top_p, min_p.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature is {self.temperature}, wanted 0 (the likeliest token) or more")
        if self.temperature < COLD:
            object.__setattr__(self, "temperature", 0.0)
        if self.top_k < 0:
            raise UserError(f"top_k is {self.top_k}, wanted 1 or more tokens, or 0 for all")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}, wanted a probability above 0, at most 1")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min_p is {self.min_p}, wanted a probability from 0 to 1")
        if not 0 < self.repetition_penalty < float("inf"):
            raise UserError(f"repetition_penalty is {self.repetition_penalty}, wanted more than 0; 1 is none")

    def apply(self, logits: Tensor, seen: Sequence[Sequence[int]]) -> Tensor:
        """All steps: (N, V) logits and the tokens of each row so far -> (N, V), what cannot come at -inf."""
        logits = logits.float()
        if self.repetition_penalty != 1:
            logits = penalise(logits, seen, self.repetition_penalty)
        if self.temperature == 0:
            return logits
        logits = logits / self.temperature
        if self.top_k:
            logits = top_k(logits, self.top_k)
        if self.top_p < 1:
            logits = top_p(logits, self.top_p)
        return min_p(logits, self.min_p) if self.min_p else logits


def penalise(logits: Tensor, seen: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Make tokens that came before less likely: positive logits divided, negative ones multiplied (Keskar et al., 2019)."""
    logits = logits.clone()
    for row, tokens in enumerate(seen):
        index = torch.tensor(sorted(set(tokens)), dtype=torch.int64, device=logits.device)
        kept = logits[row, index]
        logits[row, index] = torch.where(kept > 0, kept / penalty, kept * penalty)
    return logits


def top_k(logits: Tensor, k: int) -> Tensor:
    """Only the k likeliest tokens, and those as likely as the last of them (Fan et al., 2018)."""
    least = logits.topk(min(k, logits.size(1))).values[:, -1:]
    return logits.masked_fill(logits < least, NEVER)


def top_p(logits: Tensor, p: float) -> Tensor:
    """The fewest likeliest tokens that have at least the probability p together (Holtzman et al., 2019)."""
    ordered, index = logits.sort(descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    dropped = probabilities.cumsum(-1) - probabilities >= p
    return logits.masked_fill(torch.empty_like(dropped).scatter(1, index, dropped), NEVER)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Only tokens at least p times as likely as the likeliest one (Nguyen et al., 2024)."""
    log_probs = logits.log_softmax(-1)
    return logits.masked_fill(log_probs < log_probs.amax(-1, keepdim=True) + np.log(p), NEVER)


class Chance:
    """A stream of random numbers for each row of its own, so that a row draws the same in any batch.

    ``first`` is the number of the first row.
    """

    def __init__(self, seed: int, rows: int, first: int = 0) -> None:
        self.streams = [np.random.Generator(np.random.PCG64([seed, first + row])) for row in range(rows)]

    def uniform(self, rows: Sequence[int]) -> list[float]:
        """The next number from 0 to 1 of each of these streams."""
        return [self.streams[row].random() for row in rows]

    def draw(self, logits: Tensor, rows: Sequence[int]) -> list[int]:
        """One token for each row of (N, V) by its probabilities; row i draws from stream ``rows[i]``."""
        return pick(logits, self.uniform(rows))


def pick(logits: Tensor, uniform: Sequence[float]) -> list[int]:
    """The token of each row of (N, V) at which its summed probabilities exceed a number from 0 to 1."""
    cumulated = logits.double().softmax(-1).cumsum(-1)
    # below the whole sum, whatever it was rounded to, and never a token of probability 0
    wanted = torch.tensor(uniform, dtype=torch.float64).to(logits.device)[:, None] * cumulated[:, -1:]
    found: list[int] = (
        torch.searchsorted(cumulated, wanted, right=True)[:, 0].clamp(max=logits.size(1) - 1).tolist()
    )
    return found
