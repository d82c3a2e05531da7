"""A request to an engine: its prompt, its decoding state, and its output so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from polyhead.core.array_types import Floats
from polyhead.core.errors import NotFiniteError, UserError
from polyhead.generation.prompt_template import keep_last
from polyhead.generation.shortlist.shortlist import ShortlistHead
from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.device import move_tensor
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.positions import AnyPositions, Positions


class DecodingState(Protocol):
    """The outputs of one running request. Its rows are the sequences to extend, with all new tokens."""

    rows: list[list[int]]
    parent_rows: list[int]  # the row before the last step that each row extends
    new_tokens: deque[TokenOutput]  # tokens that were not fetched yet
    error: str  # why the request failed, else ""

    @property
    def strategy(self) -> DecodingStrategy:
        """The strategy; states that share one are advanced together."""

    @property
    def width(self) -> int:
        """The maximum number of rows."""

    @property
    def max_new_tokens(self) -> int:
        """The maximum number of new tokens of a row."""

    @property
    def forced_tokens(self) -> Sequence[int]:
        """Tokens of the output that do not depend on the model's prediction."""

    def best_hypotheses(self) -> list[Hypothesis]:
        """The results of a finished request."""

    def abort(self, number: int) -> None:
        """Continue without one of the sequences."""


class DecodingStrategy(Protocol):
    """How the next token is chosen. Requests with the same settings share one and are advanced together."""

    def advance(
        self, states: Sequence[DecodingState], logits: Tensor, shortlist_head: ShortlistHead | None = None
    ) -> None:
        """Advance each state by the logits (N, V) after its rows, in order; a state without rows has ended.

        ``shortlist_head`` maps the columns to tokens, where they are not the whole vocabulary.
        """

    def plan_greedy(self, states: Sequence[DecodingState]) -> GreedyPlan | None:
        """The next steps of states with one row, if only the most likely tokens matter; else None."""

    def extend_greedy(self, states: Sequence[DecodingState], ids: Tensor, log_probs: Tensor) -> None:
        """Advance each state by the tokens of planned steps and their log-probabilities, (N, B) each."""


class TokenDrafter(Protocol):
    """Draft tokens of a request with one sequence, for speculative decoding."""

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """At most ``max_tokens`` tokens that may follow ``output_ids``."""


class FinishStatus(NamedTuple):
    """How a request finished; set once."""

    reason: Literal["done", "cancelled", "error"]
    error: Exception | None = None


class RequestRunner(Protocol):
    """What a request needs of the engine that runs it."""

    def step(self) -> object:
        """Run one step of the model for all running requests."""

    def cancel(self, request: Request) -> None:
        """Cancel a request and free its memory."""

    def stop(self, request: Request, number: int) -> None:
        """End one sequence of a request."""


class Request:
    """A handle: iterate over it for its tokens, wait for ``result()``, or ``cancel()`` it at any time.

    A thread that waits for a token runs the engine, so no other thread is needed; several threads may wait.
    """

    def __init__(
        self,
        engine: RequestRunner,
        prompt: Sequence[int],
        state: DecodingState,
        source: Sequence[int] | None,
        cost: int,
        drafter: TokenDrafter | None = None,
    ) -> None:
        self.engine, self.state, self.source, self.cost = engine, state, source, cost
        self.drafter = drafter
        self.prompt = list(prompt)  # tokens before the new ones
        self.window_start = 0  # the first visible token, before which only ``prefix_ids`` is visible
        self.prefix_ids: Sequence[int] = ()
        self.max_kv_tokens = 0  # maximum cache tokens
        self.num_cached_tokens: int | None = None  # tokens found in the prefix cache, once it has started
        self.finish_status: FinishStatus | None = None

    def visible_tokens(self, row: int) -> list[int]:
        """All visible tokens of a row, the last one included."""
        tokens, start = [*self.prompt, *self.state.rows[row]], self.window_start
        return keep_last(tokens, len(tokens) - start, self.prefix_ids) if start else tokens

    @property
    def common_prefix_len(self) -> int:
        """Length of the common prefix of all rows, without their last tokens."""
        longest = len(self.prompt) + len(self.state.rows[0]) - self.window_start - 1
        if self.has_equal_rows:
            return longest
        columns = zip(*(self.state.rows), strict=True)
        num_equal = next(i for i, column in enumerate(columns) if len(set(column)) > 1)
        return min(longest, max(0, len(self.prompt) + num_equal - self.window_start))

    @property
    def has_equal_rows(self) -> bool:
        """Whether all rows have the same tokens, as before the first new one."""
        return all(row == self.state.rows[0] for row in self.state.rows)

    def cancel(self) -> None:
        """Cancel the request; its memory is free at once. No effect if it is finished."""
        self.engine.cancel(self)

    def stop(self, number: int) -> None:
        """End one of its sequences; the others continue."""
        self.engine.stop(self, number)

    def result(self) -> list[Hypothesis]:
        """Wait for the end and return all hypotheses; raises the error of a failed request."""
        while self.finish_status is None:
            self.engine.step()
        if self.finish_status.error is not None:
            raise self.finish_status.error
        return self.state.best_hypotheses()

    def __iter__(self) -> Iterator[TokenOutput]:
        """Yield every token as soon as it is final; none with beam search, where that is at the end."""
        while True:
            # read before the tokens, so that they include the last ones
            end = self.finish_status
            while self.state.new_tokens:
                yield self.state.new_tokens.popleft()
            if end is not None:
                break
            self.engine.step()
        if end.error is not None:
            raise end.error


def check_request(model: Decoder, max_len: int, prompt: Sequence[int], source: Sequence[int] | None) -> None:
    """Raise a UserError if a model cannot continue a prompt or read a source."""
    if not prompt:
        raise UserError("a prompt has no tokens; a language model requires at least one")
    if len(prompt) > max_len:
        raise UserError(
            f"the prompt has {len(prompt)} tokens; the model's maximum is {max_len}: pass only its end"
        )
    if (source is None) == (model.encode is not None):
        why = "got none" if source is None else "this model has no encoder"
        raise UserError(f"an encoder-decoder requires a source, {why}")
    if source is not None and not source:
        raise UserError("a source has no tokens")
    for tokens, vocab_size in ((prompt, model.vocab_size), (source or (), model.source_size)):
        for token in tokens:
            if not 0 <= token < vocab_size:
                raise UserError(f"no token {token}; the vocabulary has 0 to {vocab_size - 1}")


# The interface of a decoder, its padded inputs, and the outputs of decoding.
class Decoder(Protocol):
    """A model that predicts next tokens."""

    training: bool

    @property
    def vocab_size(self) -> int: ...

    @property
    def source_size(self) -> int: ...

    @property
    def cache_shape(self) -> CacheShape: ...

    @property
    def head(self) -> Callable[[Tensor], Tensor]: ...

    @property
    def encode(self) -> Callable[..., list[EncoderMemory]] | None:
        """The encoder; None if it reads no source."""

    @property
    def decode_greedy(self) -> Any:
        """Several greedy steps in one call; None if the kernels do not have them for this model."""

    def decode(
        self, tokens: Tensor, pos: AnyPositions, cache: Cache | None, memory: list[EncoderMemory] | None
    ) -> Tensor: ...

    def decode_features(
        self, tokens: Tensor, pos: AnyPositions, cache: Cache | None, memory: list[EncoderMemory] | None
    ) -> Tensor: ...


class GreedyPlan(NamedTuple):
    """Steps that some requests would take alike: each row continues with its most likely allowed token."""

    n_steps: int  # maximum number of steps
    banned_ids: Sequence[int]
    eos_ids: Sequence[int]  # tokens after which the steps end


class Hypothesis(NamedTuple):
    """One output: tokens without start and end, score, and the log-probability that the score is made of."""

    tokens: list[int]
    score: float
    log_prob: float
    length: int  # number of tokens that log_prob sums over

    @property
    def confidence(self) -> float:
        """The geometric mean of the probabilities of the tokens, from 0 to 1."""
        return math.exp(self.log_prob / max(1, self.length))


TopLogprobs = tuple[tuple[int, float], ...]  # tokens with their log-probabilities, the most likely first


class TokenOutput(NamedTuple):
    """A new token of a sequence, its log-probability under the model, and whether it ends the sequence."""

    row: int
    id: int
    log_prob: float
    is_last: bool
    top_logprobs: TopLogprobs = ()  # the most likely tokens at this position, if requested


def normalize_score(log_prob: float, length: int, length_penalty: float) -> float:
    """log P(y | x) / |y| ** length_penalty; |y| counts the end token (Wu et al., 2016, without their 5)."""
    score: float = log_prob / length**length_penalty
    return score


def to_host(log_probs: Tensor) -> Floats:
    """Log-probabilities in double precision, in which they are summed; NaN is a NotFiniteError."""
    host: Floats = log_probs.double().cpu().numpy()
    if np.isnan(host).any():
        raise NotFiniteError
    return host


def require_finite(x: Tensor) -> Tensor:
    """Return an output of a model; NaN or infinity is a NotFiniteError."""
    if not bool(x.isfinite().all()):
        raise NotFiniteError
    return x


def start_step(
    cache: Cache,
    rows: Sequence[int],
    texts: Sequence[Sequence[int]],
    cached_lens: Sequence[int],
    device: torch.device,
) -> tuple[Tensor, AnyPositions]:
    """Prepare a cache for the next tokens of some rows, which have so many cached tokens.

    Returns the tokens and their positions (B, S) on the device of the model, with -1 at padding.
    """
    # with arrays: padded lists take twenty times as long
    lengths = np.array([len(text) for text in texts])[:, None]
    offsets = np.arange(lengths.max())
    is_token = offsets < lengths
    ids = np.zeros(is_token.shape, np.int64)
    ids[is_token] = [token for text in texts for token in text]
    host_pos = np.where(is_token, np.array(cached_lens)[:, None] + offsets, -1)
    tokens, pos = torch.from_numpy(ids), torch.from_numpy(host_pos)
    cache.prepare_step(rows, pos)
    if device.type == "cpu":
        return tokens, pos
    return move_tensor(tokens, device), Positions(move_tensor(pos, device), pos)


def pad_rows(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Token ids and positions (B, S) of rows of different lengths; positions are None without padding."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)[:, None]
    if min(map(len, rows)) == longest:
        return tokens, None
    pos = torch.arange(longest, device=device).expand(len(rows), -1)
    return tokens, torch.where(pos < lengths, pos, -1)
