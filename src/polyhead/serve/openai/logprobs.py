"""Log-probabilities of tokens and of their alternatives, in the two formats of OpenAI's API, and echoes.

With ``echo`` the outputs of a completion are preceded by the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from polyhead.evaluate.scoring import score_tokens
from polyhead.generation.text_engine import PreparedRequest
from polyhead.generation.text_output import TokenLogprobs
from polyhead.generation.token_offsets import token_offsets
from polyhead.introspect.word_alignment import AlignedPair
from polyhead.run.run import Run
from polyhead.serve.api_errors import ApiError
from polyhead.serve.engine_thread import ClientStreams, OutputDelta
from polyhead.serve.http.http_exchange import finite_or_none
from polyhead.serve.openai.schemas import CompletionBody
from polyhead.serve.service import Service, total_length
from polyhead.tokenizers.display import REPLACEMENT_CHAR
from polyhead.tokenizers.special_tokens import BYTE_TOKEN
from polyhead.tokenizers.tokenizer import Tokenizer

LOGPROB_CHARS = 32  # JSON characters of a number with its punctuation
CHAT_LOGPROB_CHARS = 80  # JSON characters of a token in chat completions: text, log-probability, bytes


def check_logprobs_size(
    service: Service,
    requests: Sequence[PreparedRequest],
    num_alternatives: int,
    chars_per_token: int,
    field: str,
) -> None:
    """Reject a request whose log-probabilities could exceed the size limit of a body.

    Each new token has ``num_alternatives`` alternatives.
    """
    tokens = sum(request.n * request.state.max_new_tokens for request in requests)
    max_chars = service.limits.max_body
    num_chars = chars_per_token * (1 + num_alternatives) * tokens
    if num_chars > max_chars:
        message = (
            f"logprobs of up to {tokens:,} tokens would take {num_chars:,} characters; the maximum is "
            f"{max_chars:,}, or {max_chars // (chars_per_token * (1 + num_alternatives)):,} tokens: request "
            f"a lower max_tokens, n or {field}"
        )
        raise ApiError(400, "answer_too_long", message, "max_tokens")


def format_completion_logprobs(
    run: Run, logprobs: TokenLogprobs, num_logprobs: int, offsets: Sequence[int]
) -> dict[str, list[Any]]:
    """Format as parallel lists, for completions.

    With alternatives, the generated token is always among them, also if an alternative has the same text.
    """
    lists: dict[str, list[Any]] = {
        "text_offset": list(offsets),
        "tokens": [_format_token(run.tokenizer, token) for token in logprobs.tokens],
        "token_logprobs": [finite_or_none(value) for value in logprobs.log_probs],
    }
    if num_logprobs:
        lists["top_logprobs"] = [
            {
                _format_token(run.tokenizer, other): finite_or_none(p)
                for other, p in (*reversed(top), (token, value))
            }
            for token, value, top in zip(*logprobs, strict=True)
        ]
    return lists


def format_chat_logprobs(run: Run, logprobs: TokenLogprobs) -> dict[str, Any]:
    """Format as a list of tokens, each with its alternatives, most likely first, for chat completions."""
    content = [
        _format_entry(run, token, value) | {"top_logprobs": [_format_entry(run, *other) for other in top]}
        for token, value, top in zip(*logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def format_tokens(run: Run, reading: AlignedPair) -> list[dict[str, Any]]:
    """Format the tokens of a translation, its end included."""
    return [_format_entry(run, *one) for one in zip(reading.tokens, reading.log_probs, strict=True)]


def _format_entry(run: Run, token: int, log_prob: float) -> dict[str, Any]:
    tokenizer = run.tokenizer.target_tokenizer
    data = _token_bytes(tokenizer, token)
    return {
        "token": _format_token(tokenizer, token),
        "logprob": finite_or_none(log_prob),
        "bytes": None if data is None else list(data),
    }


def _format_token(tokenizer: Tokenizer, token: int) -> str:
    """Return the text that a token adds, in OpenAI's notation.

    A part of a character is given by its bytes, and a token without text by its name.
    """
    data = _token_bytes(tokenizer, token)
    if not data:
        return tokenizer.ids_to_tokens([token])[0]
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _token_bytes(tokenizer: Tokenizer, token: int) -> bytes | None:
    """Return the bytes that a token adds after other text, also for a part of a character.

    None if the token has no byte representation.
    """
    if tokenizer.token_bytes is not None:
        return tokenizer.token_bytes[token]
    prefix_ids, prefix_text = _find_prefix_token(tokenizer)
    text = tokenizer.decode([[*prefix_ids, token]])[0].removeprefix(prefix_text)
    if REPLACEMENT_CHAR not in text:
        return text.encode()
    byte = BYTE_TOKEN.fullmatch(tokenizer.ids_to_tokens([token])[0])
    return bytes([int(byte[1], 16)]) if byte else None


@lru_cache(maxsize=4)
def _find_prefix_token(tokenizer: Tokenizer) -> tuple[list[int], str]:
    """Return a token, and its text, after which other tokens keep the leading space that a first token loses.

    Empty if there is no such token.
    """
    for token in range(tokenizer.vocab_size):
        once, twice = tokenizer.decode([[token], [token, token]])
        if once.isalnum() and twice.startswith(once) and len(twice) > len(once):
            return [token], once
    return [], ""


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
        self.offsets = None
        if num_logprobs is not None:
            self.offsets = token_offsets(run.tokenizer, prefix_ids, len(echo.text))

    def format_delta(self, delta: OutputDelta) -> dict[str, Any]:
        """Format a delta; the first one is preceded by the echo."""
        echo, self.echo, logprobs = self.echo, Echo(), None
        if self.offsets is not None:
            logprobs = format_completion_logprobs(
                self.run, delta.logprobs, self.num_logprobs, self.offsets.next_offsets(delta.logprobs.tokens)
            )
        if logprobs and echo.logprobs:
            logprobs = {name: echo.logprobs[name] + values for name, values in logprobs.items()}
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
        message = (
            f"prompts of {tokens:,} tokens would take {num_chars:,} characters; the maximum is "
            f"{max_chars:,}: send fewer at once, or a lower n or logprobs"
        )
        raise ApiError(400, "answer_too_long", message, "prompt")
    check_logprobs_size(service, requests, body.logprobs, LOGPROB_CHARS, "logprobs")
    return requests


async def make_echo_outputs(
    service: Service, body: CompletionBody, streams: ClientStreams, num_logprobs: int | None
) -> dict[tuple[int, int], EchoOutput]:
    """Return the outputs of each text, by (text index, output row)."""
    context_ids = [stream.request.context_ids for stream in streams.members]
    echoes = [Echo()] * len(context_ids)
    if body.echo:
        echoes = await _make_echoes(service, body, context_ids, num_logprobs)
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

    prompt_logprobs: Sequence[Any] = []
    if num_logprobs is not None:
        prompt_logprobs = await service.compute_more(("prompts", num_logprobs), score_batch, prompt_ids)
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
    padded = TokenLogprobs(ids, [0.0, *logprobs.log_probs], [(), *logprobs.top_logprobs])
    formatted = format_completion_logprobs(run, padded, num_logprobs, offsets)
    undefined = {"token_logprobs", "top_logprobs"} & formatted.keys()
    return formatted | {name: [None, *formatted[name][1:]] for name in undefined}
