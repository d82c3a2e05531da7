"""Draft tokens from the text itself."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.core.errors import UserError
from polyhead.core.option_types import PositiveInt
from polyhead.core.registry import SPECULATIVE
from polyhead.generation.speculative.verify import DraftContext, DraftTokens
from polyhead.run.run import Run


@SPECULATIVE.register("lookup")
class PromptLookup:
    """Draft tokens copied from the last occurrence of the current n-gram in the text.

    The last ``ngram`` tokens are searched in the whole text so far, prompt included, then fewer of them, down
    to ``min_ngram``; the newest occurrence counts. Without an occurrence there is no draft. With a seed the
    text is exactly that of plain sampling (in bf16 up to its rounding).

    Equation: guess_j = x_{i+j}, i = max {i <= t : x_{i-n} .. x_{i-1} = x_{t-n+1} .. x_t},
      min_ngram <= n <= ngram, the largest such n
    Paper: Saxena, 2023 (prompt lookup decoding); Yang et al., 2023 (LLMA)
    When: small batches whose output repeats the prompt or itself: corrections, code, lists, greedy decoding.
      It needs no second model
    Recipe: {task: language-model, generation: {speculative: lookup}}
    Options:
      ngram: maximum number of last tokens to search
      min_ngram: minimum number; with more the drafts are fewer, and better
      tokens: maximum number of draft tokens per step; more pay off where long passages repeat
    """

    def __init__(
        self,
        target: Run | None,
        *,
        ngram: PositiveInt = 3,
        min_ngram: PositiveInt = 1,
        tokens: PositiveInt = 4,
    ) -> None:
        if min_ngram > ngram:
            raise UserError(
                f"speculative 'lookup': min_ngram is {min_ngram}, expected at most ngram ({ngram})"
            )
        self.ngram_sizes, self.tokens = range(ngram, min_ngram - 1, -1), tokens

    def start(self, prompts: Sequence[Sequence[int]], context: DraftContext) -> PromptLookupDrafter:
        return PromptLookupDrafter([NgramIndex(self.ngram_sizes) for _ in prompts], self.tokens)


class PromptLookupDrafter:
    """One n-gram index per text."""

    def __init__(self, indices: list[NgramIndex], tokens: int) -> None:
        self.indices, self.tokens = indices, tokens

    def propose(
        self, texts: Sequence[Sequence[int]], streams: Sequence[int], max_tokens: Sequence[int]
    ) -> list[DraftTokens]:
        rows = zip(self.indices, texts, max_tokens, strict=True)
        return [DraftTokens(index.find_continuation(text, min(self.tokens, k))) for index, text, k in rows]

    def reorder(self, rows: Sequence[int]) -> None:
        self.indices = [self.indices[row].copy() for row in rows]


class NgramIndex:
    """The last occurrence of each n-gram of a growing text; ``ngram_sizes`` are searched in their order."""

    def __init__(self, ngram_sizes: Sequence[int]) -> None:
        self.ngram_sizes, self.num_indexed = ngram_sizes, 1
        self.next_positions: dict[tuple[int, ...], int] = {}  # n-gram -> position of the token after it

    def copy(self) -> NgramIndex:
        """A copy, to continue with another text."""
        index = NgramIndex(self.ngram_sizes)
        index.num_indexed, index.next_positions = self.num_indexed, dict(self.next_positions)
        return index

    def find_continuation(self, text: Sequence[int], tokens: int) -> list[int]:
        """Tokens after the previous occurrence of the last n-gram, repeated if they reach the text's end."""
        for end in range(self.num_indexed, len(text)):
            for n in self.ngram_sizes:
                if n <= end:
                    self.next_positions[tuple(text[end - n : end])] = end
        self.num_indexed = max(self.num_indexed, len(text))
        for n in self.ngram_sizes:
            if n <= len(text) and tuple(text[-n:]) in self.next_positions:
                position = self.next_positions[tuple(text[-n:])]
                continuation = list(text[position : position + max(0, tokens)])
                while len(continuation) < tokens:
                    continuation.append(continuation[len(continuation) - (len(text) - position)])
                return continuation
        return []
