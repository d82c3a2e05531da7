"""Drawing the next token, or taking the likeliest: sequences that go on side by side, each on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from polyhead.generate.decoder import NOT_A_NUMBER, Hypothesis, Ranked, Token
from polyhead.generate.request import Search
from polyhead.generate.sampling import Chance, Sampling
from polyhead.generate.shortlist import Narrow
from polyhead.text.form.form import STUCK, Form


class Drawing:
    """The rule: how logits are shaped before a token is drawn, which tokens end a sequence, and what it must look like."""

    def __init__(self, sampling: Sampling, *ends: int, form: Form | None = None) -> None:
        self.sampling, self.ends, self.form = sampling, ends, form

    def advance(self, searches: Sequence[Search], logits: Tensor, narrow: Narrow | None = None) -> None:
        """One token more for each row of each search."""
        logits = logits if narrow is None else narrow.whole(logits)
        drawn, sampling = cast("Sequence[Drawn]", searches), self.sampling
        seen = (
            [[*search.prompt, *row] for search in drawn for row in search.rows] if sampling.remembers else []
        )
        cold = sampling.temperature == 0
        numbers = (
            [] if cold else [number for search in drawn for number in search.chance.uniform(search.numbers)]
        )
        said = [row for search in drawn for row in search.rows]
        allowed = logits if self.form is None else self.form.shaped(logits, said)
        tokens = sampling.draw(allowed, seen, numbers, self.ends[0], said)
        chosen = torch.from_numpy(np.array(tokens)[:, None]).to(logits.device)
        # what cannot come is drawn where nothing can
        stuck = (
            [False] * len(tokens)
            if self.form is None
            else allowed.gather(1, chosen)[:, 0].isneginf().tolist()
        )
        all_probs = logits.log_softmax(-1, dtype=torch.float32)
        log_probs = all_probs.gather(1, chosen).flatten().tolist()
        first = 0
        for search in drawn:
            last = first + len(search.rows)
            top = ranked(all_probs[first:last], search.top) if search.top else []
            if any(stuck[first:last]):
                search.error = STUCK
            else:
                search.take(tokens[first:last], log_probs[first:last], self.ends, top)
            first = last


def ranked(log_probs: Tensor, k: int) -> list[Ranked]:
    """The k likeliest tokens of each row of (N, V), with their log-probabilities."""
    values, ids = log_probs.topk(min(k, log_probs.size(1)))
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return [tuple(zip(*pair, strict=True)) for pair in pairs]


class Drawn:
    """``n`` sequences after one prompt. What each draws depends on (seed, its number) alone."""

    def __init__(
        self,
        rule: Drawing,
        prompt: Sequence[int],
        limit: int,
        n: int = 1,
        seed: int = 0,
        first: int = 0,
        top: int = 0,
    ) -> None:
        self.rule, self.prompt, self.limit, self.first = rule, list(prompt), limit, first
        self.top = top  # how many of the likeliest tokens are told with each
        self.chance = Chance(seed, n, first)
        self.numbers = list(range(n))  # of the rows
        self.rows: list[list[int]] = [[] for _ in range(n)]
        self.origins = self.numbers
        self.found: list[tuple[list[int], float]] = [([], 0.0) for _ in range(n)]
        self.said: list[Token] = []
        self.error = ""

    forced: Sequence[int] = ()

    @property
    def width(self) -> int:
        return len(self.found)

    @property
    def most(self) -> int:
        return self.limit

    def take(
        self, tokens: list[int], log_probs: list[float], ends: Sequence[int], top: Sequence[Ranked]
    ) -> None:
        """The next token of each row; those that end with it leave."""
        going = []
        for i, (token, log_prob) in enumerate(zip(tokens, log_probs, strict=True)):
            if log_prob != log_prob:
                self.error = NOT_A_NUMBER
                return
            row, number = self.rows[i], self.numbers[i]
            row.append(token)
            last = token in ends or len(row) == self.limit
            self.found[number] = (row[:-1] if token in ends else row, self.found[number][1] + log_prob)
            self.said.append(Token(self.first + number, token, log_prob, last, top[i] if top else ()))
            if not last:
                going.append(i)
        self._keep(going)

    def drop(self, number: int) -> None:
        self._keep([i for i, own in enumerate(self.numbers) if own != number - self.first])

    def best(self) -> list[Hypothesis]:
        """Every sequence, in the order of their numbers; the score is the log-probability."""
        return [Hypothesis(tokens, log_prob, log_prob) for tokens, log_prob in self.found]

    def _keep(self, going: list[int]) -> None:
        self.origins = going
        if len(going) == len(self.rows):
            return
        self.rows, self.numbers = [self.rows[i] for i in going], [self.numbers[i] for i in going]
