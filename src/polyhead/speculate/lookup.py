"""Guesses from the text itself."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.errors import UserError
from polyhead.generate.speculative import Conditions, Guess
from polyhead.registry import SPECULATE
from polyhead.run import Run


@SPECULATE.register("lookup")
class Lookup:
    """The tokens that followed when the text said the same last.

    The last ``ngram`` tokens are looked up in all the text so far, prompt included, then fewer of them, down to ``least``;
    the newest place counts. Nothing is guessed where all of them are new. With a seed the text is the very one that plain
    sampling gives (in bf16 up to its rounding).

    Equation: guess_j = x_{i+j}, i = max {i <= t : x_{i-n} .. x_{i-1} = x_{t-n+1} .. x_t}, least <= n <= ngram, the largest such n
    Paper: Saxena, 2023 (prompt lookup decoding); Yang et al., 2023 (LLMA)
    When: one text or few whose output repeats the prompt or itself: corrections, code, lists, what is said greedily. It costs
      no second model
    Recipe: {task: language-model, generation: {speculate: lookup}}
    Options:
      ngram: last tokens that are looked up, at most
      least: and at least; more of them guess less, and better
      tokens: tokens guessed in a step, at most; more of them pay where long passages come again
    """

    def __init__(self, target: Run | None, *, ngram: int = 3, least: int = 1, tokens: int = 4) -> None:
        for name, value in (("ngram", ngram), ("least", least), ("tokens", tokens)):
            if value < 1:
                raise UserError(f"speculate 'lookup': {name} is {value}, wanted at least 1")
        if least > ngram:
            raise UserError(f"speculate 'lookup': least is {least}, wanted at most ngram ({ngram})")
        self.lengths, self.tokens = range(ngram, least - 1, -1), tokens

    def begin(self, prompts: Sequence[Sequence[int]], conditions: Conditions) -> Shelf:
        return Shelf([Index(self.lengths) for _ in prompts], self.tokens)


class Shelf:
    """An index for each text."""

    def __init__(self, indices: list[Index], tokens: int) -> None:
        self.indices, self.tokens = indices, tokens

    def guess(
        self, texts: Sequence[Sequence[int]], streams: Sequence[int], most: Sequence[int]
    ) -> list[Guess]:
        rows = zip(self.indices, texts, most, strict=True)
        return [Guess(index.follow(text, min(self.tokens, k))) for index, text, k in rows]

    def keep(self, rows: Sequence[int]) -> None:
        self.indices = [self.indices[row].copy() for row in rows]


class Index:
    """Where each run of so many tokens of a text ended last; the text only grows. ``lengths`` are in the order they are tried."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths, self.read = lengths, 1
        self.ends: dict[tuple[int, ...], int] = {}  # run -> where what follows it stands

    def copy(self) -> Index:
        """The same, to go on with another text."""
        other = Index(self.lengths)
        other.read, other.ends = self.read, dict(self.ends)
        return other

    def follow(self, text: Sequence[int], tokens: int) -> list[int]:
        """What followed the end of the text before; where that runs into the end itself, it is taken to go on so."""
        for end in range(self.read, len(text)):
            for n in self.lengths:
                if n <= end:
                    self.ends[tuple(text[end - n : end])] = end
        self.read = max(self.read, len(text))
        for n in self.lengths:
            if n <= len(text) and tuple(text[-n:]) in self.ends:
                place = self.ends[tuple(text[-n:])]
                found = list(text[place : place + max(0, tokens)])
                while len(found) < tokens:
                    found.append(found[len(found) - (len(text) - place)])
                return found
        return []
