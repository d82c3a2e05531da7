"""A model that reads texts as they grow, of which the last tokens may turn out to be others."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polyhead.cache.make import make_cache
from polyhead.errors import UserError
from polyhead.generate.decoder import Decoder
from polyhead.generate.padding import following
from polyhead.registry import CACHE, Choice

ALONE = 2  # more tokens than these, before a text's last one, are read before the step, by the rows that lag


class Reader:
    """What a model has read of some texts, a row of its cache each.

    ``longest`` is the number of tokens of the longest text, guesses included. A text that outgrows ``max_len``, the
    model's greatest length, is seen from its last ``max_len // 2`` tokens on.
    """

    def __init__(
        self, model: Decoder, n: int, longest: int, max_len: int | None, cache: Choice | None
    ) -> None:
        assert not model.training, "decoding wants model.eval(): dropout would make the outputs random"
        self.model, self.max_len, self.longest = model, max_len, longest
        self.cache = make_cache(cache, model.cache_shape, n, min(longest, max_len or longest))
        if not self.cache.rewinds:
            able = ", ".join(name for name in CACHE.names() if CACHE.get(name).rewinds)
            folds = any(any(one.states) for one in model.cache_shape.members)
            what = "the state that this model keeps" if folds or not cache else f"cache {cache.name!r}"
            raise UserError(
                f"speculative decoding takes back what was guessed wrong, and {what} cannot give back what it read; "
                + ("no cache changes that" if folds else f"caches that can: {able}")
            )
        self.since = [0] * n  # the first token that is still seen
        self.held = [0] * n  # how many tokens from there on the cache holds

    def settle(self, texts: Sequence[Sequence[int]], room: int = 0) -> None:
        """The texts as they are from now on: the last token is new, those before are as they were read, if they were.

        What a text lacks is read, all but the last token. One that would outgrow the model by ``room`` tokens more is
        seen from its last half on.
        """
        lagging = []
        for row, text in enumerate(texts):
            if self.max_len is not None and len(text) - self.since[row] + room > self.max_len:
                self.since[row], self.held[row] = len(text) - max(1, self.max_len // 2), 0
                self.cache.release(row)
            self.held[row] = min(self.held[row], len(text) - 1 - self.since[row])
            if len(text) - 1 - self.since[row] - self.held[row] > ALONE:
                lagging.append(row)
        if lagging:
            tokens, pos = self._feed(lagging, [texts[row][:-1] for row in lagging])
            self.model.read(tokens, pos, self.cache, None)

    def room(self, row: int, text: Sequence[int]) -> int:
        """How many more tokens of a text the model can see without losing its beginning."""
        return (
            self.longest - len(text) if self.max_len is None else self.max_len - (len(text) - self.since[row])
        )

    def logits(
        self, rows: Sequence[int], texts: Sequence[Sequence[int]], last: Sequence[int]
    ) -> list[Tensor]:
        """Read what is new of the texts of some rows; the logits after the ``last[i]`` last tokens of each, (last[i], V)."""
        fed = [len(text) - self.since[row] - self.held[row] for row, text in zip(rows, texts, strict=True)]
        tokens, pos = self._feed(rows, texts)
        found = self.model.decode(tokens, pos, self.cache, None)
        return [out[n - k : n] for out, n, k in zip(found, fed, last, strict=True)]

    def keep(self, rows: Sequence[int]) -> None:
        """Row i goes on from what row ``rows[i]`` was; rows may come again."""
        self.cache.select(rows)
        self.since, self.held = ([old[row] for row in rows] for old in (self.since, self.held))

    def _feed(self, rows: Sequence[int], texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Begin a step: what the cache lacks of the texts of some rows, tokens and positions (N, T), padding on the right."""
        new = [text[self.since[row] + self.held[row] :] for row, text in zip(rows, texts, strict=True)]
        tokens, pos = following(new, [self.held[row] for row in rows], self.model.cache_shape.device)
        self.cache.begin(rows, pos)
        for row, part in zip(rows, new, strict=True):
            self.held[row] += len(part)
        return tokens, pos
