"""One served model: admission control, the request queue, and the way from a request to the engine thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.chat import ChatSession
from polyhead.generation.text_engine import PreparedRequest
from polyhead.models.build import CAPABILITIES
from polyhead.run.run import Run
from polyhead.run.run_examples import read_examples
from polyhead.serve.api_errors import (
    ApiError,
    overloaded_error,
    unavailable_error,
    user_error,
    wait_for_result,
)
from polyhead.serve.auth import ApiKeys, check_origins
from polyhead.serve.engine_thread import ClientStream, ClientStreams, EngineThread, StreamUpdate, to_api_error
from polyhead.serve.explainer import Explainer
from polyhead.serve.limits import Limits
from polyhead.serve.metrics import Metrics
from polyhead.serve.model_card import Card, reads_pairs
from polyhead.tokenizers.languages import language_error

T = TypeVar("T")
TOKENIZER_THREADS = 2  # threads that tokenize texts
MAX_INLINE_CHARS = 4096  # characters tokenized in the event loop: a hand-over to another thread takes longer
TASKS_BY_KIND = {
    "encoder-decoder": ["translations", "completions", "score"],
    "decoder": ["completions", "score", "embeddings"],
    "encoder": ["embeddings", "fill-mask"],
    "classifier": ["classify", "rerank", "embeddings"],
    "token classifier": ["tag"],
    "question answerer": ["answer"],
}
log = logging.getLogger("polyhead.serve")


class Service:
    """A run, the engine thread that owns its model, and the limits of the service."""

    def __init__(
        self,
        run: Run,
        name: str,
        limits: Limits,
        api_keys: ApiKeys,
        *,
        strict_fields: bool = False,
        deterministic: bool = False,
        chat: Choice | None = None,
        allowed_origins: Sequence[str] = (),
        **engine: Any,
    ) -> None:
        self.run = run
        self.name = name
        self.limits = limits
        self.api_keys = api_keys
        self.strict_fields = strict_fields
        self.allowed_origins = check_origins(allowed_origins)
        self.deterministic, self.created_at, self.is_draining = deterministic, int(time.time()), False
        self.kind = run.kind
        is_generative = self.kind in ("decoder", "encoder-decoder")
        self.engine = run.engine(deterministic=deterministic, **engine) if is_generative else None
        # new tokens of an output if a request has no maximum
        self.default_max_tokens = min(run.generation.max_new_tokens, limits.max_tokens)
        self.chat = self._open_chat_session(chat)
        self.language_error = language_error(run.tokenizer) if self.kind == "encoder-decoder" else ""
        unsupported = dict.fromkeys(("completions", "score"), bool(self.language_error))
        unsupported["rerank"] = len(run.config.labels) != 1 or not reads_pairs(run)
        unsupported |= {"fill-mask": not run.config.lm_head, "embeddings": len(run.members) > 1}
        self.tasks = [task for task in TASKS_BY_KIND[self.kind] if not unsupported.get(task)]
        self.tasks += ["chat/completions"] if self.chat else []
        if not self.tasks:
            raise UserError(
                f"{name} cannot be served: embeddings require a single run, not an ensemble of "
                f"{len(run.members)}"
            )
        # with keys others are served too: they see no text of the run
        examples = [] if api_keys else read_examples(run.directory)
        self.explainer = Explainer(run, examples)
        self.card = Card.from_run(run, use_own_samples=not api_keys)
        self.metrics = Metrics()
        self.engine_thread: EngineThread | None = None
        self.tokenizer_pool = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="polyhead-read")
        self._num_reading = self._num_preemptions = 0

    def _open_chat_session(self, choice: Choice | None) -> ChatSession | None:
        """Open a chat session if the model can chat, else return None.

        An explicitly requested chat format must fit the model (UserError); a format that comes from the run's
        settings only logs a warning if it does not.
        """
        if choice is None and (self.run.generation.chat is None or self.kind != "decoder"):
            return None
        if self.kind != "decoder" or self.engine is None:
            raise UserError(
                f"--chat: {self.name} is {CAPABILITIES[self.kind][0]}; only language models support "
                "conversations"
            )
        try:
            return ChatSession(self.engine, choice or self.run.generation.chat)
        except UserError as error:
            if choice is not None:
                raise
            log.warning("conversations are not supported: %s", error)
            return None

    def start(self) -> None:
        """Start the engine thread and register the gauges. Called from within the running event loop."""
        loop = asyncio.get_running_loop()
        # the rounding of sums depends on what else is in the batch
        batch_size = 0 if self.deterministic else self.limits.max_batch
        self.engine_thread = engine_thread = EngineThread(
            self.engine, loop, self.limits.engine_timeout, batch_size
        )
        engine_thread.start()
        self.metrics.add_gauge("requests_running", "running texts", lambda: engine_thread.num_running)
        self.metrics.add_gauge("requests_waiting", "queued texts", lambda: self.num_waiting)
        self.metrics.add_gauge("kv_tokens", "tokens in the KV cache", lambda: engine_thread.cached_tokens)

    def close(self) -> None:
        """Stop the engine thread and the tokenizer pool; pending requests end with an error."""
        if self.engine_thread is not None:
            self.engine_thread.close()
        self.tokenizer_pool.shutdown(wait=False, cancel_futures=True)
        self.explainer.close()

    @property
    def num_waiting(self) -> int:
        """Number of texts that wait to be started."""
        return self._num_reading + (self.engine_thread.num_waiting if self.engine_thread else 0)

    @property
    def health_error(self) -> str:
        """Reason why the service is not ready for requests, or "" if it is ready."""
        if self.is_draining:
            return "the service is shutting down"
        return self.engine_thread.health_error if self.engine_thread else "the service is starting"

    def require_task(self, task: str) -> None:
        """Reject an endpoint that this model does not support; the error lists the supported ones."""
        if task not in self.tasks:
            paths = ", ".join(f"/v1/{name}" for name in self.tasks)
            reason = f"{self.name} is {CAPABILITIES[self.kind][0]}, which /v1/{task} does not support"
            message = (task in TASKS_BY_KIND[self.kind] and self.language_error) or f"{reason}: use {paths}"
            raise ApiError(400, "wrong_task", message, "model")

    def check_model(self, model: str) -> None:
        """Reject a request for another model id."""
        if model not in ("", self.name):
            raise ApiError(404, "model_not_found", f"unknown model; this service has {self.name!r}", "model")

    def check_queue(self, num_texts: int = 1) -> None:
        """Reject a request if the queue has no room for its texts or the engine thread is dead."""
        assert self.engine_thread is not None
        if not self.engine_thread.is_alive():
            raise unavailable_error("not_ready", self.health_error)
        if self.num_waiting and self.num_waiting + num_texts > self.limits.max_queue:
            raise overloaded_error(f"{self.num_waiting} texts")

    @contextmanager
    def _reserve_queue(self, num_texts: int) -> Iterator[None]:
        """Reserve places in the queue during tokenization; afterwards the engine counts the texts."""
        self.check_queue(num_texts)
        self._num_reading += num_texts
        try:
            yield
        finally:
            self._num_reading -= num_texts

    async def run_in_executor(self, work: Callable[[], T], num_chars: float) -> T:
        """Run ``work``, above ``MAX_INLINE_CHARS`` characters in the tokenizer pool.

        This keeps the event loop responsive. ``work`` must not touch the model.
        """
        if num_chars <= MAX_INLINE_CHARS:
            return _run_with_api_errors(work)
        return await asyncio.get_running_loop().run_in_executor(
            self.tokenizer_pool, lambda: _run_with_api_errors(work)
        )

    async def compute(
        self,
        key: Hashable,
        check: Callable[[], list[Any]],
        work: Callable[[list[Any]], Sequence[Any]],
        texts: Sequence[Any],
    ) -> tuple[list[Any], Sequence[Any]]:
        """Run ``check``, then ``work`` on its items in the engine thread; return the items and their results.

        There is one result per item. Jobs with the same ``key`` may be batched. More than ``max_batch`` items
        are computed in parts, one after the other, between which other requests have their turn.
        """
        assert self.engine_thread is not None
        with self._reserve_queue(min(len(texts), self.limits.max_batch)):
            items = await self.run_in_executor(check, total_length(texts))
            size = self.limits.max_batch
            first, *rest = [items[start : start + size] for start in range(0, len(items), size)]
            done = self.engine_thread.submit_job(key, work, first)
        results = [*await wait_for_result(done)]
        for part in rest:
            results += await self.compute_more(key, work, part)
        return items, results

    async def compute_more(
        self, key: Hashable, work: Callable[[list[Any]], Sequence[Any]], items: list[Any]
    ) -> Sequence[Any]:
        """Compute further results for a request that has already been admitted.

        The queue limit is not checked again, so that a request is not rejected halfway.
        """
        assert self.engine_thread is not None
        return await wait_for_result(self.engine_thread.submit_job(key, work, items))

    @asynccontextmanager
    async def open_streams(
        self,
        prepare: Callable[[], list[PreparedRequest]],
        num_texts: int,
        num_chars: float,
        *,
        is_streaming: bool,
        has_output: bool = True,
    ) -> AsyncIterator[ClientStreams]:
        """Submit texts to the engine and yield their streams. ``num_chars`` is the length of all texts.

        Without ``has_output`` nothing is generated. Leaving the context early aborts the texts; their cache
        blocks are free one step later.
        """
        assert self.engine_thread is not None and self.engine is not None
        streams = ClientStreams()
        try:
            with self._reserve_queue(num_texts):
                requests = await self.run_in_executor(prepare, num_chars)
                streams.members = [
                    ClientStream(number, request, streams.queue, is_streaming)
                    for number, request in enumerate(requests)
                ]
                if has_output:
                    self.engine_thread.submit(streams.members)
            for update in [await streams.queue.get() for _ in streams.members if has_output]:
                if update.error is not None:
                    raise to_api_error(update.error)
            for stream in streams.members if not has_output else ():
                streams.queue.put_nowait(StreamUpdate(stream, stream.results(), True))
            yield streams
        finally:
            for stream in streams.members:
                if stream.output is None or stream.output.request.finish_status is None:
                    self.engine_thread.abort(stream)
                stream.queue = None  # unread updates refer to their stream: breaks the reference cycle

    def render_metrics(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        num_preemptions = self.engine.engine.preemptions if self.engine else 0
        self.metrics.preemptions.inc(num_preemptions - self._num_preemptions)
        self._num_preemptions = num_preemptions
        return self.metrics.to_prometheus()

    def count_usage(self, streams: Sequence[ClientStream]) -> dict[str, Any]:
        """Return the ``usage`` field of a response, and add it to the metrics."""
        outputs = [stream.output for stream in streams if stream.output]
        num_prompt = sum(len(stream.request.source or stream.request.prompt) for stream in streams)
        num_completion = sum(sum(map(len, output.tokens)) for output in outputs)
        self.metrics.tokens.labels("prompt").inc(num_prompt)
        self.metrics.tokens.labels("completion").inc(num_completion)
        for stream in streams:
            # beam search returns all tokens at once: no per-token log-probabilities, no time per token
            longest = max(map(len, stream.output.log_probs)) if stream.output else 0
            if stream.first_token_time:
                self.metrics.time_to_first_token.observe(stream.first_token_time - stream.start_time)
            if longest > 1:
                self.metrics.time_per_output_token.observe(
                    (stream.last_token_time - stream.first_token_time) / (longest - 1)
                )
        usage: dict[str, Any] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
        }
        if self.kind == "decoder":
            num_cached = sum(output.request.num_cached_tokens or 0 for output in outputs)
            usage["prompt_tokens_details"] = {"cached_tokens": num_cached}
        if num_unknown := sum(output.num_unknown_tokens for output in outputs):
            usage["completion_tokens_details"] = {"unknown_tokens": num_unknown}
            log.warning("an answer has %d unknown tokens: its text lacks these characters", num_unknown)
        return usage


def total_length(texts: Sequence[Any]) -> int:
    """Return the number of characters, or of token ids, of texts and pairs of texts."""
    return sum(total_length(text) if isinstance(text, tuple) else len(text) for text in texts)


def _run_with_api_errors(work: Callable[[], T]) -> T:
    """Run ``work``; a UserError becomes an ApiError.

    A panic of the Rust tokenizer is not an Exception and must not end the thread.
    """
    try:
        return work()
    except (ApiError, MemoryError):
        raise
    except UserError as error:
        raise user_error(error) from None
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise ApiError(400, "invalid_value", "the text cannot be tokenized") from None
