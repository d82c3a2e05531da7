"""Rules for drawing the next token: which may come, pure steps on the likeliest, and a draw that batches cannot change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polyhead.errors import UserError, check_whole
from polyhead.fast.best import best
from polyhead.fast.log_sums import log_sums
from polyhead.generate.decoder import Floats
from polyhead.generate.repeats import barred, ended, repeats

Truths = npt.NDArray[np.bool_]

NEVER = float("-inf")
HEAD = 64  # tokens that are looked at first
COLD = 1e-5  # a temperature below is 0: logits divided by it are not finite


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. Temperature 0 takes the likeliest, and then the rest has no effect but penalties.

    Steps are applied in this order: logit bias, repetition penalty, frequency and presence penalty, runs that would come
    again, temperature, top_k, top_p, min_p.
    Where every token would make a run come again, the text ends with ``end``.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # 0: any run of tokens may come again
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # tokens, each once, and what is added to their logits

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
        if self.no_repeat_ngram_size < 0:
            raise UserError(
                f"no_repeat_ngram_size is {self.no_repeat_ngram_size}, wanted 1 or more, or 0 for none"
            )
        for name in ("frequency_penalty", "presence_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise UserError(f"{name} is {getattr(self, name)}, wanted a number from -2 to 2; 0 is none")

    def apply(
        self,
        logits: Tensor,
        seen: Sequence[Sequence[int]],
        end: int = 0,
        said: Sequence[Sequence[int]] = (),
    ) -> Tensor:
        """All steps: (N, V) logits and the tokens of each row so far -> (N, V), what cannot come at -inf.

        ``said`` are those of them that were drawn, which no prompt has given.
        """
        logits = self._penalised(logits, seen, end, said)
        if self.temperature == 0:
            return logits
        if not self._cuts:
            return logits / self.temperature
        likely, ids = self._likely(logits)
        # what cannot come may stand at any column, so the greatest counts
        whole = torch.full_like(logits, NEVER)
        return whole.scatter_reduce_(1, ids.to(logits.device), likely.to(logits), "amax")

    def draw(
        self,
        logits: Tensor,
        seen: Sequence[Sequence[int]],
        uniform: Sequence[float],
        end: int = 0,
        said: Sequence[Sequence[int]] = (),
    ) -> list[int]:
        """The token that comes after each row of (N, V), by a number from 0 to 1 for each: at temperature 0 the likeliest."""
        logits = self._penalised(logits, seen, end, said)
        if self.temperature == 0:
            likeliest: list[int] = best(logits, 1)[1][:, 0].tolist()
            return likeliest
        if not self._cuts:
            return pick(logits / self.temperature, uniform)
        likely, ids = self._likely(logits)
        return [row[i] for row, i in zip(ids.tolist(), pick(likely, uniform), strict=True)]

    @property
    def remembers(self) -> bool:
        """Whether it matters which tokens came before."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram_size > 0

    @property
    def _cuts(self) -> bool:
        """Whether some tokens can never come."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @cached_property
    def _favoured(self) -> tuple[Tensor, Tensor]:
        """The tokens of the bias, and what each of them gets."""
        tokens, biases = zip(*self.logit_bias, strict=True)
        return torch.tensor(tokens), torch.tensor(biases, dtype=torch.float32)

    def _penalised(
        self, logits: Tensor, seen: Sequence[Sequence[int]], end: int, said: Sequence[Sequence[int]]
    ) -> Tensor:
        logits = logits.float()
        if self.logit_bias:
            logits = favour(logits, *self._favoured)
        if self.repetition_penalty != 1:
            logits = penalise(logits, seen, self.repetition_penalty)
        if self.frequency_penalty or self.presence_penalty:
            logits = lessen(logits, said, self.frequency_penalty, self.presence_penalty)
        n = self.no_repeat_ngram_size
        return ended(barred(logits, [repeats(text, n) for text in seen]), end) if n else logits

    def _likely(self, logits: Tensor, k: int = HEAD) -> tuple[Tensor, Tensor]:
        """Of (N, V) all tokens that may come: logits (N, K), -inf at those among them that may not, and ids, in their order.

        Only the k likeliest are looked at, and eight times as many where the last of them is not yet one too many.
        """
        k, row = min(max(k, self.top_k), logits.size(1)), np.arange(len(logits))[:, None]
        values, tokens = best(logits, k)
        ids, found = tokens.cpu().numpy(), (values.cpu().numpy() / self.temperature).astype(np.float64)
        by_id = ids.argsort(1)
        found, ids = found[row, by_id], ids[row, by_id]
        best_first = (-found).argsort(1, kind="stable")  # of equals the first token
        ranked = found[row, best_first]
        edge = ranked == (ranked[:, -1:] if k < logits.size(1) else np.nan)  # as likely as what lies beyond
        with np.errstate(invalid="ignore"):  # of a row in which nothing can come
            for kept in self._steps(ranked, logits):
                if (kept & edge).any():
                    return self._likely(logits, 8 * k)
        found[row, best_first] = np.where(kept, ranked, NEVER)
        return torch.from_numpy(found), torch.from_numpy(ids)

    def _steps(self, ranked: Floats, logits: Tensor) -> Iterator[Truths]:
        """Which of the likeliest tokens may come, (N, K) best first, after each step."""
        kept = top_k(ranked, self.top_k) if self.top_k else ranked > NEVER
        if self.top_k:
            yield kept
        if self.top_p < 1:
            weights = np.exp(ranked - ranked[:, :1]) * kept
            if self.top_k:
                whole = weights.sum(1, keepdims=True)
            else:
                whole = log_sums(logits / self.temperature)[1].exp().cpu().numpy()
            kept &= top_p(weights / whole, self.top_p)
            yield kept
        if self.min_p:
            yield kept & min_p(ranked, self.min_p)


def penalise(logits: Tensor, seen: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Make tokens that came before less likely: positive logits divided, negative ones multiplied (Keskar et al., 2019)."""
    logits = logits.clone()
    for row, tokens in enumerate(seen):
        index = torch.tensor(sorted(set(tokens)), dtype=torch.int64, device=logits.device)
        kept = logits[row, index]
        logits[row, index] = torch.where(kept > 0, kept / penalty, kept * penalty)
    return logits


def lessen(logits: Tensor, said: Sequence[Sequence[int]], frequency: float, presence: float) -> Tensor:
    """Of each token that was said, logit - count * frequency - presence, as OpenAI defines both."""
    assert len(said) == len(logits), "what was said is wanted of every row"
    counts = [Counter(tokens) for tokens in said]
    sizes = [len(counted) for counted in counts]
    if not any(sizes):
        return logits
    # by way of arrays: a list of every place takes four times as long
    rows, tokens = np.repeat(np.arange(len(said)), sizes), np.fromiter(chain(*counts), np.int64, sum(sizes))
    times = np.fromiter(chain(*(counted.values() for counted in counts)), np.float64, sum(sizes))
    less = torch.from_numpy(times * frequency + presence).to(logits)
    places = torch.from_numpy(rows).to(less.device), torch.from_numpy(tokens).to(less.device)
    return logits.index_put(places, -less, accumulate=True)


def favour(logits: Tensor, tokens: Tensor, biases: Tensor) -> Tensor:
    """Add to the logits of some tokens, (N, V), (K,), (K,) -> (N, V); what cannot come still cannot."""
    return logits.index_add(1, tokens.to(logits.device), biases.to(logits).expand(len(logits), -1))


def top_k(ranked: Floats, k: int) -> Truths:
    """The k likeliest tokens, and those as likely as the last of them (Fan et al., 2018): of logits (N, K), best first."""
    return ranked >= ranked[:, min(k, ranked.shape[1]) - 1, None]


def top_p(probabilities: Floats, p: float) -> Truths:
    """The fewest likeliest tokens that have at least the probability p together (Holtzman et al., 2019)."""
    return probabilities.cumsum(1) - probabilities < p


def min_p(ranked: Floats, p: float) -> Truths:
    """Tokens at least p times as likely as the likeliest one (Nguyen et al., 2024): of logits (N, K), best first."""
    return ranked >= ranked[:, :1] + np.log(p)


class Chance:
    """A stream of random numbers for each row of its own, so that a row draws the same in any batch.

    ``first`` is the number of the first row.
    """

    def __init__(self, seed: int, rows: int, first: int = 0) -> None:
        check_whole("seed", seed, 0)
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
    wanted = torch.from_numpy(np.array(uniform)[:, None]).to(logits.device) * cumulated[:, -1:]
    found: list[int] = torch.searchsorted(cumulated, wanted, right=True).flatten().tolist()
    return [min(token, logits.size(1) - 1) for token in found]
