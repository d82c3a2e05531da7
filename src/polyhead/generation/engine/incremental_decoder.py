"""Incremental decoding of growing texts, whose last tokens may be replaced."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.generation.engine.request import Decoder, start_step
from polyhead.generation.prompt_template import keep_last
from polyhead.nn.cache import Cache
from polyhead.nn.positions import AnyPositions

# Rows with more uncached tokens than this before the last one read them in a step of their own.
_PREFILL_THRESHOLD = 2


def check_rewinds(cache: Cache, model: Decoder, choice: Choice | None) -> None:
    """Raise a UserError if a cache, or the state of the model, cannot remove tokens."""
    if cache.rewinds:
        return
    names = ", ".join(name for name in CACHE.names() if CACHE.get(name).rewinds)
    has_state = any(any(shape.states) for shape in model.cache_shape.models)
    what = "the recurrent state of this model" if has_state or not choice else f"cache {choice.name!r}"
    raise UserError(
        f"speculative decoding removes rejected draft tokens, but {what} cannot remove tokens; "
        + ("no cache supports it" if has_state else f"caches that can: {names}")
    )


class IncrementalDecoder:
    """The tokens that a model has read of some texts, one row of its cache each.

    ``max_total_len`` is the number of tokens of the longest text, draft tokens included. A text that outgrows
    ``max_len``, the model's maximum length, is visible from its last ``max_len // 2`` tokens on, of which the
    first are ``prefix_ids`` if it begins with them.
    """

    def __init__(
        self,
        model: Decoder,
        n: int,
        max_total_len: int,
        max_len: int | None,
        cache: Choice | None,
        prefix_ids: Sequence[int] = (),
    ) -> None:
        assert not model.training, "decoding requires model.eval(): dropout would make the outputs random"
        self.model, self.max_len, self.max_total_len = model, max_len, max_total_len
        self.cache = make_cache(cache, model.cache_shape, n, min(max_total_len, max_len or max_total_len))
        check_rewinds(self.cache, model, cache)
        self.prefix_ids = prefix_ids if max_len and len(prefix_ids) < max_len // 2 else ()
        self.window_starts = [0] * n  # the first visible token of each text
        self.cached_lens = [0] * n  # number of cached tokens from there on

    def rewind(self, texts: Sequence[Sequence[int]], reserved_len: int = 0) -> None:
        """Set the texts: the last token is new, and those before it are unchanged where they are cached.

        Uncached tokens are read; the last one is read again with what follows it, for its logits. A text that
        would outgrow the model with ``reserved_len`` more tokens is visible from its last half on.
        """
        lagging = []
        for row, text in enumerate(texts):
            if self.max_len is not None and len(text) - self.window_starts[row] + reserved_len > self.max_len:
                self.window_starts[row], self.cached_lens[row] = len(text) - max(1, self.max_len // 2), 0
                self.cache.release(row)
            self.cached_lens[row] = min(self.cached_lens[row], len(text) - 1 - self.window_starts[row])
            if len(text) - 1 - self.window_starts[row] - self.cached_lens[row] > _PREFILL_THRESHOLD:
                lagging.append(row)
        if lagging:
            # the last token, too: low_rank without a file fits on this step what the engine fits on a prompt
            tokens, pos = self._prepare_inputs(lagging, [texts[row] for row in lagging])
            self.model.decode_features(tokens, pos, self.cache, None)
            for row in lagging:
                self.cached_lens[row] -= 1

    def remaining_len(self, row: int, text: Sequence[int]) -> int:
        """How many more tokens of a text fit before its beginning is no longer visible."""
        return (
            self.max_total_len - len(text)
            if self.max_len is None
            else self.max_len - (len(text) - self.window_starts[row])
        )

    def compute_logits(
        self, rows: Sequence[int], texts: Sequence[Sequence[int]], num_last: Sequence[int]
    ) -> list[Tensor]:
        """Read the uncached tokens of some rows.

        Returns the logits after the last ``num_last[i]`` tokens of each, (num_last[i], V).
        """
        num_new = [
            len(text) - self.window_starts[row] - self.cached_lens[row]
            for row, text in zip(rows, texts, strict=True)
        ]
        tokens, pos = self._prepare_inputs(rows, texts)
        logits = self.model.decode(tokens, pos, self.cache, None)
        return [out[n - k : n] for out, n, k in zip(logits, num_new, num_last, strict=True)]

    def reorder(self, rows: Sequence[int]) -> None:
        """Row i continues from the previous row ``rows[i]``; rows may repeat."""
        self.cache.select(rows)
        self.window_starts, self.cached_lens = (
            [old[row] for row in rows] for old in (self.window_starts, self.cached_lens)
        )

    def _prepare_inputs(
        self, rows: Sequence[int], texts: Sequence[Sequence[int]]
    ) -> tuple[Tensor, AnyPositions]:
        """Start a step: uncached tokens of some rows and their positions (N, T), padded on the right."""
        new = [
            keep_last(text, len(text) - self.window_starts[row], self.prefix_ids)[self.cached_lens[row] :]
            for row, text in zip(rows, texts, strict=True)
        ]
        cached_lens = [self.cached_lens[row] for row in rows]
        inputs = start_step(self.cache, rows, new, cached_lens, self.model.cache_shape.device)
        for row, part in zip(rows, new, strict=True):
            self.cached_lens[row] += len(part)
        return inputs
