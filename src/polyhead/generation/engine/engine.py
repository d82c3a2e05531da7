"""Decode many requests at once: each joins as soon as there is memory and leaves when it is finished."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import RLock
from traceback import clear_frames

import torch

from polyhead.cache.block_manager import OutOfBlocksError
from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.core.errors import NOT_FINITE, NotFiniteError, UserError, check_int
from polyhead.core.strict_kwargs import strict_kwargs
from polyhead.generation.engine.batch import DecodingBatch, EncodedSources, SequenceGroup
from polyhead.generation.engine.incremental_decoder import check_rewinds
from polyhead.generation.engine.request import (
    Decoder,
    DecodingState,
    FinishStatus,
    Request,
    TokenDrafter,
    check_request,
)
from polyhead.generation.shortlist.shortlist import Shortlist


class Engine:
    """Continuous batching (Yu et al., 2022, sec. 4.1) with any cache, for decoders and encoder-decoders.

    A step reads a chunk of the pending tokens and decodes one token of each running sequence. Requests join
    in the order of submission, while rows, tokens and the cache's memory suffice; one that can never fit is
    refused at once. When memory runs out the newest request is preempted and recomputed; no token is lost.
    Each request finishes once: done, cancelled or failed, without affecting the others.

    ``max_num_seqs`` is the maximum number of concurrent sequences, ``max_batch_tokens`` the maximum summed
    cost of concurrent requests, ``prefill_chunk`` the maximum prefill tokens of a step. Admission costs time,
    which is worth it for interactive requests; for offline decoding, ``refill_threshold`` admits new requests
    only when this share of those admitted last is finished: with 1 the whole batch. With ``deterministic``
    every request is computed separately: its output does not depend on other requests, to the last bit;
    otherwise it does by rounding, as sums in a batch are accumulated in another order. With a ``shortlist``
    an encoder-decoder outputs only tokens that its sources suggest, by a smaller head.

    The first new token comes from the last chunk of its prompt, which attends to itself as it is and to what
    the cache has kept of the chunks before. So the output depends on how a prompt is cut with a cache that
    drops, merges or rounds tokens after the step that reads them (h2o, subgen, quantized), and with low_rank
    without a projection file, which fits its directions on the first chunk of all requests that start in that
    step. With all other caches (static, growing, paged, window, state, low_rank with a file) it does not. A
    cache that is not lossless reads prompts in the order of submission, each in chunks of ``prefill_chunk``
    tokens whatever else runs; a lossless one shares the chunk evenly over all requests in prefill.
    """

    @strict_kwargs
    def __init__(
        self,
        model: Decoder,
        *,
        max_len: int,
        cache: Choice | None = None,
        max_num_seqs: int = 2**30,
        max_batch_tokens: int = 2**62,
        prefill_chunk: int = 4096,
        refill_threshold: float = 0.0,
        deterministic: bool = False,
        shortlist: Shortlist | None = None,
        prefix_ids: Sequence[int] = (),  # stay before a text that begins with them and outgrows the model
    ) -> None:
        assert not model.training, "decoding requires model.eval(): dropout would make the outputs random"
        for name, value in (
            ("max_num_seqs", max_num_seqs),
            ("max_batch_tokens", max_batch_tokens),
            ("prefill_chunk", prefill_chunk),
            ("max_len", max_len),
        ):
            check_int(f"engine: {name}", value, 1)
        if not 0 <= refill_threshold <= 1:
            raise UserError(f"engine: refill is {refill_threshold}, expected a fraction from 0 to 1")
        self.model, self.max_len, self.cache, self.max_num_seqs = model, max_len, cache, max_num_seqs
        self.max_batch_tokens = max_batch_tokens
        self.prefill_chunk = prefill_chunk
        self.refill_threshold = refill_threshold
        self.deterministic = deterministic
        self.shortlist = shortlist
        self.truncated_len = max(1, max_len // 2)  # context that remains when a text outgrows the model
        self.prefix_ids = prefix_ids if len(prefix_ids) < self.truncated_len else ()
        self._admitted = 0  # number of running requests after the last admission
        self.waiting_requests: deque[Request] = deque()
        self.batches: list[DecodingBatch] = []
        self.preemptions = 0
        self._empty_batch = self._new_batch()  # for the capacity of an engine without requests
        self._lock = RLock()

    def check_speculation(self) -> None:
        """Raise a UserError if the cache cannot remove the tokens of rejected drafts."""
        check_rewinds(self._empty_batch.cache, self.model, self.cache)

    @property
    def running_members(self) -> list[SequenceGroup]:
        """Requests with rows in a cache."""
        return [member for batch in self.batches for member in batch.members]

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs."""
        with self._lock:  # during a step a request may be in neither list
            return not self.waiting_requests and not self.running_members

    def submit(
        self,
        prompt: Sequence[int],
        state: DecodingState,
        *,
        source: Sequence[int] | None = None,
        cost: int = 0,
        drafter: TokenDrafter | None = None,
    ) -> Request:
        """Submit a request: continue a prompt, which in an encoder-decoder is the start of the target.

        A request that can never be served is a UserError. While few sequences run, the tokens of a
        ``drafter`` that decoding would output are output in one step; it requires a cache that rewinds.
        """
        check_request(self.model, self.max_len, prompt, source)
        if state.width > self.max_num_seqs:
            raise UserError(
                f"{state.width} sequences were requested; the engine runs at most {self.max_num_seqs}"
            )
        request = Request(self, prompt, state, source, cost, drafter)
        request.prefix_ids = self.prefix_ids
        request.max_kv_tokens = self._max_kv_tokens(request)
        capacity = self._empty_batch.cache.free_tokens(state.width)
        if request.max_kv_tokens > capacity:
            raise UserError(
                f"{len(prompt)} tokens and up to {state.max_new_tokens} new ones in {state.width} "
                f"sequence{'s' * (state.width > 1)} require a cache of {request.max_kv_tokens:,} tokens; "
                f"the cache has {capacity:,}: increase it, or request less"
            )
        with self._lock:
            self.waiting_requests.append(request)
        return request

    @torch.inference_mode()
    def step(self) -> None:
        """Admit requests, read a chunk, and decode one token of every running sequence."""
        with self._lock:
            self._schedule()
            for batch in list(self.batches):
                self._isolate_failure(batch, partial(self._step_batch, batch))
            # an empty cache does not shrink, so it is dropped; a prefix cache is kept for later requests
            self.batches = [
                batch for batch in self.batches if batch.members or batch.prefix_cache is not None
            ]

    @torch.inference_mode()
    def cancel(self, request: Request) -> None:
        """End a request in any state; no effect if it is finished."""
        with self._lock:
            if request.finish_status is None:
                self._remove(request)
                self._finish(request, FinishStatus("cancelled"))

    def fail_all(self, error: Exception) -> None:
        """Fail every request with this error and reset the engine; for errors outside of requests."""
        with self._lock:
            requests = [*self.waiting_requests, *(member.request for member in self.running_members)]
            self.waiting_requests.clear()
            for batch in self.batches:
                batch.close(error)
            self.batches.clear()
            self._admitted = 0
            for request in requests:
                if request.finish_status is None:
                    self._finish(request, FinishStatus("error", error))

    @torch.inference_mode()
    def stop(self, request: Request, number: int) -> None:
        """End one sequence of a request; with its last one the request is done."""
        with self._lock:
            if request.finish_status is not None:
                return
            request.state.abort(number)
            if not request.state.rows:
                self._remove(request)
                self._finish(request, FinishStatus("done"))
                return
            for batch in self.batches:
                for member in batch.members:
                    if member.request is request:
                        batch.prune(member)

    def _new_batch(self) -> DecodingBatch:
        cache = make_cache(self.cache, self.model.cache_shape, 0, self.max_len)
        return DecodingBatch(self.model, cache, not self.deterministic, self.shortlist, self.max_len)

    def _isolate_failure(self, batch: DecodingBatch, work: Callable[[], None]) -> None:
        """Run ``work``; if it fails, fail the requests of the batch and continue without it."""
        try:
            work()
        except Exception as error:
            self.batches.remove(batch)
            for member in batch.members:
                self._finish(member.request, FinishStatus("error", error))
            batch.close(error)

    def _max_kv_tokens(self, request: Request) -> int:
        """Maximum cache tokens of a new request: blocks of the shared prefix and of the rest of each row."""
        block_size, state, prompt_len = self._empty_batch.cache.block_size, request.state, len(request.prompt)
        length, max_tokens, shared = prompt_len + state.max_new_tokens - 1, 0, prompt_len
        # the peak may be before a text is truncated or after it: then rows share less, or nothing
        while True:
            shared_tokens, longest = shared // block_size * block_size, min(length, self.max_len)
            rows = state.width if longest > shared else 1
            max_tokens = max(
                max_tokens, shared_tokens + rows * -(-(longest - shared_tokens) // block_size) * block_size
            )
            if length <= self.max_len or not shared:
                return max_tokens
            num_dropped = self.max_len + 1 - self.truncated_len
            length, prompt_len = length - num_dropped, prompt_len - num_dropped
            shared = max(0, prompt_len)

    def _schedule(self) -> None:
        """Admit waiting requests in their order while there is memory; none overtakes, so none starves."""
        if not self.waiting_requests:
            return
        admitted_requests: list[Request] = []
        running = self.running_members
        # admission costs time, so offline decoding waits until enough requests are finished
        if len(running) > (1 - self.refill_threshold) * self._admitted:
            return
        rows = sum(member.request.state.width for member in running)
        tokens = sum(member.request.cost for member in running)
        if self.deterministic:  # nothing is preempted there, so the maximum is reserved
            cache, num_new_rows = self._empty_batch.cache, rows
            used_tokens = sum(member.request.max_kv_tokens for member in running)
        else:
            cache, num_new_rows = self.batches[0].cache if self.batches else self._empty_batch.cache, 0
            # each row may need one more block in the next step
            used_tokens = sum(
                sum(map(len, member.pending)) + cache.block_size * len(member.cached_lens)
                for member in running
            )
        while self.waiting_requests:
            request = self.waiting_requests[0]
            rows += request.state.width
            num_new_rows += request.state.width
            tokens += request.cost
            used_tokens += (
                request.max_kv_tokens if self.deterministic else self._tokens_before_first_output(request)
            )
            fits = (
                rows <= self.max_num_seqs
                and tokens <= self.max_batch_tokens
                and used_tokens <= cache.free_tokens(num_new_rows)
            )
            # a request alone is always tried: its own error is better than waiting forever
            if not fits and (running or admitted_requests):
                break
            admitted_requests.append(self.waiting_requests.popleft())
        if self.deterministic:
            for request in admitted_requests:
                self._admit_requests(self._new_batch(), [request])
        elif admitted_requests:
            self._admit_requests(self.batches[0] if self.batches else self._new_batch(), admitted_requests)
        if admitted_requests:
            self._admitted = len(self.running_members)

    def _admit_requests(self, batch: DecodingBatch, requests: Sequence[Request]) -> None:
        """Add requests to a batch, if their sources can be encoded."""
        if (encoded_sources := self._encode_sources(batch, requests)) is None:
            return
        if batch not in self.batches:
            self.batches.append(batch)
        self._isolate_failure(batch, partial(batch.add_requests, requests, encoded_sources))

    def _encode_sources(self, batch: DecodingBatch, requests: Sequence[Request]) -> EncodedSources | None:
        """Encode the sources of requests; if that fails, only these requests fail."""
        if batch.encode is None:
            return EncodedSources([], [])
        try:
            return batch.encode_sources(requests)
        except Exception as error:
            for request in requests:
                self._finish(request, FinishStatus("error", error))
            clear_frames(error.__traceback__)
            return None

    def _tokens_before_first_output(self, request: Request) -> int:
        """Cache tokens of a request before its first new token."""
        block_size, prefix_len = self._empty_batch.cache.block_size, request.common_prefix_len
        rest_len = len(request.visible_tokens(0)) - prefix_len
        num_blocks = -(-prefix_len // block_size) + len(request.state.rows) * -(-rest_len // block_size)
        return num_blocks * block_size

    def _step_batch(self, batch: DecodingBatch) -> None:
        """One step of the requests that are decoded together."""
        while True:
            try:
                batch.prefill(self.prefill_chunk)
                break
            except OutOfBlocksError as full:
                self._preempt(batch, full)
        for group in batch.ready_groups():
            for member in self._step_group(batch, group):
                message = member.request.state.error
                error = NotFiniteError() if message == NOT_FINITE else UserError(message)
                self._finish(
                    member.request, FinishStatus("error", error) if message else FinishStatus("done")
                )
            for member in group:
                # before another group can preempt it
                if member.cached_lens and member.cached_lens[0] >= self.max_len:
                    # longer than the model: continue from the last half of the text
                    member.request.window_start += member.cached_lens[0] + 1 - self.truncated_len
                    batch.remove([member])
                    if encoded_sources := self._encode_sources(batch, [member.request]):
                        batch.add_requests([member.request], encoded_sources)

    def _step_group(self, batch: DecodingBatch, group: list[SequenceGroup]) -> list[SequenceGroup]:
        """Decode one token for the members of a group that fit; return the members that have ended."""
        while present := set(batch.members).intersection(group):
            group = [member for member in group if member in present]
            try:
                return batch.step(group)
            except OutOfBlocksError as error:
                self._preempt(batch, error)
        return []

    def _preempt(self, batch: DecodingBatch, error: OutOfBlocksError) -> None:
        """Preempt the newest request; it is recomputed later (recomputation: Kwon et al., 2023, sec. 4.5).

        A request that is alone does not fit at all and fails with the error.
        """
        if len(batch.members) == 1:
            raise error
        victim = batch.members[-1]
        batch.remove([victim])
        self.waiting_requests.appendleft(victim.request)
        self.preemptions += 1

    def _remove(self, request: Request) -> None:
        """Remove a request from the queue or from its batch."""
        if request in self.waiting_requests:
            self.waiting_requests.remove(request)
        for batch in self.batches:
            batch.remove([member for member in batch.members if member.request is request])

    def _finish(self, request: Request, status: FinishStatus) -> None:
        assert request.finish_status is None, "a request finishes only once"
        request.finish_status = status
