"""The output of one submitted text, streamed or collected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from polyhead.generation.decoding.beam_search import BeamState
from polyhead.generation.detokenizer import Detokenizer
from polyhead.generation.engine.request import Request, TopLogprobs
from polyhead.generation.text_generation import TextDelta

FinishReason = Literal["stop", "length", "cancelled", "error"]


class TokenLogprobs(NamedTuple):
    """Output tokens, their log-probabilities and, if requested, the most likely tokens at each position."""

    tokens: list[int]
    log_probs: list[float]
    top_logprobs: list[TopLogprobs]


class TextOutput:
    """The output of one submitted text: iterate over it for the deltas, or wait for ``collect_texts()``.

    ``finish_reasons`` has one entry per sequence: "stop" (an end token or a stop string), "length",
    "cancelled" or "error"; None while it runs.
    """

    def __init__(
        self,
        request: Request,
        detokenizers: list[Detokenizer],
        eos_ids: Sequence[int],
        opening_ids: tuple[int, ...],
        unknown_id: int | None,
    ) -> None:
        self.request = request
        self.detokenizers = detokenizers
        self.eos_ids = eos_ids
        self.opening_ids = opening_ids
        self.unknown_id = unknown_id
        # of each sequence so far, end token included
        self.tokens: list[list[int]] = [[] for _ in detokenizers]
        # of these tokens; beam search has one score for a whole sequence
        self.log_probs: list[list[float]] = [[] for _ in detokenizers]
        # the most likely tokens at the position of each of these tokens
        self.top_logprobs: list[list[TopLogprobs]] = [[] for _ in detokenizers]
        self._reasons: list[FinishReason | None] = [None for _ in detokenizers]
        self._texts: list[list[str]] = [[] for _ in detokenizers]

    @property
    def finish_reasons(self) -> list[FinishReason | None]:
        """How each sequence ended, None if it still runs."""
        end = self.request.finish_status
        if end is None or end.reason == "done":
            return list(self._reasons)
        return [reason or end.reason for reason in self._reasons]

    def __iter__(self) -> Iterator[TextDelta]:
        """Yield deltas of complete characters; the result of beam search comes as a whole, at its end.

        A caller may stop and continue later, here or with ``collect_texts()``.
        """
        while True:
            # read before the deltas, so that they include the last tokens
            end = self.request.finish_status
            yield from self.drain_deltas()
            if end is not None:
                break
            self.request.engine.step()
        if end.error is not None:
            raise end.error

    def drain_deltas(self) -> Iterator[TextDelta]:
        """Yield the deltas that are available, without running the engine."""
        new_tokens = self.request.state.new_tokens
        while new_tokens:
            token = new_tokens.popleft()
            if self._reasons[token.row] is not None:
                continue  # tokens after a stop string
            detokenizer, is_end = self.detokenizers[token.row], token.id in self.eos_ids
            text = detokenizer.flush() if is_end else detokenizer.feed(token.id, token.is_last)
            if detokenizer.is_stopped and not token.is_last:
                self.request.stop(token.row)
            if token.is_last or detokenizer.is_stopped:
                self._reasons[token.row] = "stop" if is_end or detokenizer.is_stopped else "length"
            self.tokens[token.row].append(token.id)
            self.log_probs[token.row].append(token.log_prob)
            self.top_logprobs[token.row].append(token.top_logprobs)
            self._texts[token.row].append(text)
            yield TextDelta(token.row, text, token.is_last or detokenizer.is_stopped)
        if isinstance(self.request.state, BeamState):
            yield from self._drain_hypotheses(self.request.state)

    def token_logprobs(self, row: int, start: int = 0) -> TokenLogprobs:
        """The tokens of a sequence from position ``start`` on."""
        return TokenLogprobs(
            self.tokens[row][start:], self.log_probs[row][start:], self.top_logprobs[row][start:]
        )

    @property
    def texts(self) -> list[str]:
        """The text of each sequence so far."""
        return ["".join(pieces) for pieces in self._texts]

    @property
    def num_unknown_tokens(self) -> int:
        """Number of unknown tokens so far, of all sequences: their text lacks these characters."""
        return sum(tokens.count(self.unknown_id) for tokens in self.tokens if self.unknown_id is not None)

    def collect_texts(self) -> list[str]:
        """Wait for the end and return one text per sequence."""
        for _ in self:
            pass
        return self.texts

    def cancel(self) -> None:
        """Cancel the request; its memory is free at once."""
        self.request.cancel()

    def _drain_hypotheses(self, state: BeamState) -> Iterator[TextDelta]:
        if self.request.finish_status is None or self.request.finish_status.reason != "done":
            return
        for row, hypothesis in enumerate(state.best_hypotheses()):
            if self._reasons[row] is None:
                tokens, detokenizer = hypothesis.tokens, self.detokenizers[row]
                n = len(self.opening_ids) if tuple(tokens[: len(self.opening_ids)]) == self.opening_ids else 0
                text = "".join(map(detokenizer.feed, tokens[n:])) + detokenizer.flush()
                is_ended = len(tokens) < state.max_new_tokens
                self._reasons[row] = "stop" if is_ended or detokenizer.is_stopped else "length"
                self.tokens[row] = [*tokens, self.eos_ids[0]] if is_ended else tokens
                self._texts[row].append(text)
                yield TextDelta(row, text, True)
