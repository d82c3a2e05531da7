"""Conversations in the format of OpenAI's chat completions endpoint: from a request to its answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from polyhead.chat.base import ToolCall, is_prefill
from polyhead.chat.reasoning import ReasoningParser
from polyhead.chat.tool_calls import ToolCallParser, ToolCallSyntax
from polyhead.chat.tools import ToolChoice, select_tools
from polyhead.core.errors import UserError
from polyhead.generation.chat import ChatSession
from polyhead.generation.text_engine import PreparedRequest
from polyhead.serve.api_errors import ApiError, invalid_value_error, unsupported_parameter_error
from polyhead.serve.client_stream import ClientStream, ClientStreams, OutputDelta
from polyhead.serve.http.http_exchange import HttpExchange
from polyhead.serve.openai.completions import (
    get_finish_reason,
    make_response_head,
    stream_chunks,
    warn_shortened_output,
)
from polyhead.serve.openai.logprobs import CHAT_LOGPROB_CHARS, check_logprobs_size, format_chat_logprobs
from polyhead.serve.openai.request_builder import build_requests, count_reading_chars, default_max_tokens
from polyhead.serve.openai.schemas import ChatBody
from polyhead.serve.service import Service


class AnswerDelta(NamedTuple):
    """A part of an answer: reasoning, the text after it, and the tool calls after that."""

    reasoning: str
    content: str
    calls: list[ToolCall]


class AssistantMessage:
    """One answer, streamed or complete."""

    def __init__(
        self, syntax: ToolCallSyntax | None, tools: ToolChoice, reasoning: ReasoningParser | None = None
    ) -> None:
        self._parser: ToolCallParser | None = (
            syntax.make_parser(tools) if syntax and tools.all_tools else None
        )
        self._reasoning_parser = reasoning
        self._is_started = False
        self._num_calls = 0  # sent so far

    def next_delta(self, text: str, is_last: bool) -> dict[str, Any]:
        """Return the delta for new text, to be appended by the client."""
        reasoning, content, calls = self._parse_text(text, is_last)
        delta: dict[str, Any] = {} if self._is_started else {"role": "assistant"}
        delta |= _reasoning_fields(reasoning)
        if calls:
            delta["tool_calls"] = [
                {"index": self._num_calls + i, **to_openai(call)} for i, call in enumerate(calls)
            ]
        self._is_started, self._num_calls = True, self._num_calls + len(calls)
        if content or not (self._parser or reasoning) or (is_last and not self._num_calls):
            delta["content"] = content
        return delta

    def full_message(self, text: str) -> dict[str, Any]:
        """Return the complete message; content is null if there are only tool calls."""
        reasoning, content, calls = self._parse_text(text, True)
        self._num_calls = len(calls)
        has_content = content or not (calls or reasoning)
        message = {"role": "assistant", "content": content if has_content else None, "refusal": None}
        message |= _reasoning_fields(reasoning)
        return message | ({"tool_calls": [to_openai(call) for call in calls]} if calls else {})

    def finish_reason(self, stream: ClientStream, row: int) -> str:
        """Return the finish reason."""
        reason = get_finish_reason(stream, row)
        return "tool_calls" if self._num_calls and reason == "stop" else reason

    def parse_delta(self, text: str, is_last: bool) -> Iterator[AnswerDelta]:
        """Yield what is certain after this text, in order."""
        reasoning, content = (
            self._reasoning_parser.feed(text, is_last) if self._reasoning_parser else ("", text)
        )
        pairs = self._parser.parse_delta(content, is_last) if self._parser else [(content, [])]
        for part, calls in pairs:
            yield AnswerDelta(reasoning, part, calls)
            reasoning = ""

    @property
    def consumed_bytes(self) -> int:
        """Number of bytes of the answer that are classified as reasoning, text or tool call."""
        return self.reasoning_bytes + (self._parser.consumed_bytes if self._parser else 0)

    @property
    def reasoning_bytes(self) -> int:
        """Number of bytes of the answer before its content."""
        return self._reasoning_parser.consumed_bytes if self._reasoning_parser else 0

    def _parse_text(self, text: str, is_last: bool) -> AnswerDelta:
        """Parse text into its reasoning, one text and all tool calls."""
        reasoning, texts, calls = zip(*self.parse_delta(text, is_last), strict=True)
        return AnswerDelta("".join(reasoning), "".join(texts), [call for group in calls for call in group])


def _reasoning_fields(reasoning: str) -> dict[str, str]:
    """Return the fields of reasoning: the name in vLLM, and the older one that more clients read."""
    return {"reasoning": reasoning, "reasoning_content": reasoning} if reasoning else {}


def to_openai(call: ToolCall) -> dict[str, Any]:
    """Return a tool call in OpenAI's format."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


async def create_chat_completion(service: Service, exchange: HttpExchange, body: ChatBody) -> None:
    """Answer the last message of a conversation."""
    if "max_completion_tokens" in body.model_fields_set:
        body.max_tokens = body.max_completion_tokens

    async with open_chat(service, body) as (streams, answers):
        warn_shortened_output(exchange, body, streams)

        def make_chunk(stream: ClientStream, delta: OutputDelta) -> dict[str, Any]:
            answer = answers[delta.row]
            return {
                "index": delta.row,
                "delta": answer.next_delta(delta.text, delta.is_last),
                "logprobs": format_chat_logprobs(service.run, delta.logprobs) if body.logprobs else None,
                "finish_reason": answer.finish_reason(stream, delta.row) if delta.is_last else None,
            }

        if body.stream:
            head = make_response_head("chatcmpl", "chat.completion.chunk", service)
            await stream_chunks(service, exchange, body, streams, head, "choices", make_chunk)
            return
        await streams.wait_finished()
        (member,) = streams.members
        choices = [
            {
                "index": result.row,
                "message": answers[result.row].full_message(result.text),
                "logprobs": format_chat_logprobs(service.run, result.logprobs) if body.logprobs else None,
                "finish_reason": answers[result.row].finish_reason(member, result.row),
            }
            for result in member.results()
        ]
        usage = service.count_usage(streams.members)
        head = make_response_head("chatcmpl", "chat.completion", service)
        await exchange.send_json({**head, "choices": choices, "usage": usage})


class OpenChat(NamedTuple):
    """A conversation submitted to the engine, and its answers by output row."""

    streams: ClientStreams
    messages: defaultdict[int, AssistantMessage]


@asynccontextmanager
async def open_chat(service: Service, body: ChatBody) -> AsyncIterator[OpenChat]:
    """Submit a conversation to the engine; leaving the context aborts it."""
    if (session := service.chat) is None:
        reason = (
            "its chat format is unknown; start the service with --chat NAME to set it"
            if service.kind == "decoder"
            else f"it is not a language model; use /v1/{service.tasks[0]}"
        )
        message = f"{service.name} does not support conversations: {reason}"
        raise ApiError(400, "model_not_chat", message, "model")
    if body.top_logprobs and not body.logprobs:
        raise invalid_value_error("top_logprobs", "top_logprobs requires logprobs=true")
    if body.logprobs and "beam_size" in body.model_fields_set:
        raise unsupported_parameter_error("logprobs", "logprobs are supported only for sampled text")
    _check_continuation(body)
    if body.chat_template_kwargs.enable_thinking is False and session.reasoning is None:
        raise unsupported_parameter_error(
            "chat_template_kwargs", "chat_template_kwargs.enable_thinking: this chat format has no reasoning"
        )
    tools = _choose_tools(session, body, service.limits.max_chars)
    num_chars = count_reading_chars(service, body, body.messages.num_chars)
    async with service.open_streams(
        lambda: [_build_request(service, session, body, tools)], 1, num_chars, is_streaming=body.stream
    ) as streams:
        thinks = body.chat_template_kwargs.enable_thinking is not False

        def make_answer() -> AssistantMessage:
            reasoning = session.reasoning and ReasoningParser(session.reasoning, body.messages, thinks)
            return AssistantMessage(session.tool_syntax, tools, reasoning)

        yield OpenChat(streams, defaultdict(make_answer))


def _check_continuation(body: ChatBody) -> None:
    """Reject settings that contradict the last message: one of the assistant is continued, no other is."""
    continues = is_prefill(body.messages)
    settings = {
        "continue_final_message": body.continue_final_message,
        "add_generation_prompt": None
        if body.add_generation_prompt is None
        else not body.add_generation_prompt,
    }
    for name, value in settings.items():
        if value not in (None, continues):
            reason = (
                "is continued" if continues else "is not one of the assistant, so an answer to it is started"
            )
            given = "true" if getattr(body, name) else "false"
            raise invalid_value_error(name, f"{name}: {given}, but the last message {reason}")


def _choose_tools(chat: ChatSession, body: ChatBody, max_chars: int) -> ToolChoice:
    """Select the tools that the answer may or must call; ``max_chars`` limits their description."""
    try:
        tools = select_tools(body.tools, body.tool_choice, body.parallel_tool_calls is not False)
    except UserError as error:
        raise invalid_value_error("tool_choice", f"tool_choice: {error}") from None
    if tools.all_tools:
        _check_tools_size(chat, tools, max_chars)
    if tools.required_tools and body.stop:
        raise invalid_value_error(
            "stop", "stop: an answer that must call a function ends with the call: remove it"
        )
    has_format = body.response_format is not None and body.response_format.type != "text"
    formats = ["response_format"] * has_format
    formats += [name for name in ("structured_outputs", "grammar") if getattr(body, name) is not None]
    if tools.required_tools and formats:
        raise invalid_value_error(
            "tool_choice",
            "tool_choice: an answer that must call a function cannot have another format: "
            f"remove {formats[0]}",
        )
    return tools


def _check_tools_size(chat: ChatSession, tools: ToolChoice, max_chars: int) -> None:
    """Reject tools that this chat format cannot write, or writes with more characters than is allowed."""
    try:
        length = chat.count_overhead_chars(tools)
    except UserError as error:
        raise unsupported_parameter_error("tools", f"tools: {error}") from None
    if length > max_chars:
        message = f"tools: in the model's format they have {length} characters; the maximum is {max_chars}"
        raise ApiError(400, "text_too_long", message, "tools")


def _build_request(service: Service, chat: ChatSession, body: ChatBody, tools: ToolChoice) -> PreparedRequest:
    """Encode the conversation, without its oldest turns if truncation is requested and they do not fit."""
    try:
        if body.truncate:
            ids = _encode_truncated(service, chat, body, tools)
        else:
            thinks = body.chat_template_kwargs.enable_thinking is not False
            ids = chat.encode_prompt(body.messages, tools, thinks)
        options = chat.build_options(body.messages, tools) | {"top_logprobs": body.top_logprobs}
        (request,) = build_requests(service, body, [ids], **options)
    except UserError as error:
        raise invalid_value_error("messages", f"messages: {error}") from None
    except ApiError as refusal:
        if refusal.param == "prompt":
            refusal.param = "messages"
        elif (
            chat.tool_syntax and tools.required_tools and refusal.param == "response_format"
        ):  # the grammar of a tool call
            refusal.param, refusal.message = "tools", chat.tool_syntax.explain_error(refusal.message, tools)
        raise
    if body.logprobs:
        check_logprobs_size(service, [request], body.top_logprobs, CHAT_LOGPROB_CHARS, "top_logprobs")
    return request


def _encode_truncated(service: Service, chat: ChatSession, body: ChatBody, tools: ToolChoice) -> list[int]:
    """Encode the conversation without its oldest turns, so that the answer has the requested length.

    Without a requested length, or with one beyond the model's, the default applies, but at most half of the
    context, and at least one token.
    """
    max_len, num_new = chat.engine.max_len, body.max_tokens
    thinks = body.chat_template_kwargs.enable_thinking is not False
    if "max_tokens" in body.model_fields_set and num_new <= max_len:
        fallback, hint = 0, f", or request less than max_tokens={num_new}"
    else:
        num_new, fallback, hint = min(default_max_tokens(service, chat.engine), max_len // 2), max_len, ""
    try:
        return chat.truncate_history(body.messages, max_len + 1 - num_new, tools, fallback, thinks).ids
    except UserError as error:
        raise ApiError(400, "context_length_exceeded", f"{error}{hint}", "messages") from None
