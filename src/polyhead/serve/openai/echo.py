"""Completion outputs, preceded by the prompt if ``echo`` is set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from polyhead.evaluate.scoring import score_tokens
from polyhead.generation.text_engine import PreparedRequest
from polyhead.generation.text_output import TokenLogprobs
from polyhead.run.run import Run
from polyhead.serve.api_errors import ApiError
from polyhead.serve.client_stream import ClientStreams, OutputDelta
from polyhead.serve.openai.logprobs import (
    LOGPROB_CHARS,
    check_logprobs_size,
    format_completion_logprobs,
    token_offsets,
)
from polyhead.serve.openai.schemas import CompletionBody
from polyhead.serve.service import Service, total_length


class Echo(NamedTuple):
    """The echoed prompt of an output."""

    text: str = ""
    logprobs: dict[str, list[Any]] | None = None  # of its tokens, if requested


class EchoOutput:
    """One output of a completion, formatted delta by delta.

    ``num_logprobs`` alternatives are returned for each token; None: no log-probabilities at all.
    """

    def __init__(self, run: Run, prefix_ids: Sequence[int], echo: Echo, num_logprobs: int | None) -> None:
        self.run, self.echo, self.num_logprobs = run, echo, num_logprobs or 0
        self.offsets = (
            None if num_logprobs is None else token_offsets(run.tokenizer, prefix_ids, len(echo.text))
        )

    def format_delta(self, delta: OutputDelta) -> dict[str, Any]:
        """Format a delta; the first one is preceded by the echo."""
        echo, self.echo, logprobs = self.echo, Echo(), None
        if self.offsets is not None:
            logprobs = format_completion_logprobs(
                self.run, delta.logprobs, self.num_logprobs, self.offsets.next_offsets(delta.logprobs.tokens)
            )
            logprobs = (
                {name: echo.logprobs[name] + values for name, values in logprobs.items()}
                if echo.logprobs
                else logprobs
            )
        return {"text": echo.text + delta.text, "logprobs": logprobs}


def check_reply_size(
    service: Service, body: CompletionBody, requests: list[PreparedRequest]
) -> list[PreparedRequest]:
    """Return the requests, or reject them if their log-probabilities could exceed the size limit."""
    tokens, max_chars = sum(len(request.prompt) for request in requests), service.limits.max_body
    num_chars = LOGPROB_CHARS * tokens * (1 + body.logprobs) * body.n
    if "logprobs" not in body.model_fields_set:
        return requests
    if body.echo and num_chars > max_chars:
        raise ApiError(
            400,
            "answer_too_long",
            f"prompts of {tokens:,} tokens would take {num_chars:,} characters; the maximum is "
            f"{max_chars:,}: send fewer at once, or a lower n or logprobs",
            "prompt",
        )
    check_logprobs_size(service, requests, body.logprobs, LOGPROB_CHARS, "logprobs")
    return requests


async def make_echo_outputs(
    service: Service, body: CompletionBody, streams: ClientStreams, num_logprobs: int | None
) -> dict[tuple[int, int], EchoOutput]:
    """Return the outputs of each text, by (text index, output row)."""
    context_ids = [stream.request.context_ids for stream in streams.members]
    echoes = (
        await _make_echoes(service, body, context_ids, num_logprobs)
        if body.echo
        else [Echo()] * len(context_ids)
    )
    return {
        (number, row): EchoOutput(service.run, ids, echo, num_logprobs)
        for number, (ids, echo) in enumerate(zip(context_ids, echoes, strict=True))
        for row in range(body.n)
    }


async def _make_echoes(
    service: Service, body: CompletionBody, prompt_ids: list[list[int]], num_logprobs: int | None
) -> list[Echo]:
    """Return the prompts, with the log-probabilities of their ``prompt_ids`` if requested."""
    run, prompts = service.run, body.prompt
    model: Any = run.model

    def score_batch(rows: list[list[int]]) -> list[TokenLogprobs]:
        return score_tokens(model, run.tokenizer.pad_id, rows, num_logprobs or 0)

    def build_echoes() -> list[Echo]:
        texts = [one if isinstance(one, str) else run.tokenizer.decode([one])[0] for one in prompts]
        if num_logprobs is None:
            return [Echo(text) for text in texts]
        columns = zip(texts, prompts, prompt_ids, prompt_logprobs, strict=True)
        return [Echo(text, _format_prompt_logprobs(run, num_logprobs, *one)) for text, *one in columns]

    prompt_logprobs = (
        []
        if num_logprobs is None
        else await service.compute_more(("prompts", num_logprobs), score_batch, prompt_ids)
    )
    return await service.run_in_executor(build_echoes, total_length(prompts))


def _format_prompt_logprobs(
    run: Run, num_logprobs: int, prompt: str | list[int], ids: list[int], logprobs: TokenLogprobs
) -> dict[str, list[Any]]:
    """Format the log-probabilities of a prompt; the first token has none."""
    t = run.tokenizer
    offsets = (
        t.encode_with_offsets(prompt)[1] if isinstance(prompt, str) else token_offsets(t).next_offsets(prompt)
    )
    # special tokens before the text have offset 0; truncated tokens have no offset
    offsets = [*[0] * (len(ids) - len(offsets)), *offsets][-len(ids) :]
    formatted = format_completion_logprobs(
        run,
        TokenLogprobs(ids, [0.0, *logprobs.log_probs], [(), *logprobs.top_logprobs]),
        num_logprobs,
        offsets,
    )
    undefined = {"token_logprobs", "top_logprobs"} & formatted.keys()
    return formatted | {name: [None, *formatted[name][1:]] for name in undefined}
