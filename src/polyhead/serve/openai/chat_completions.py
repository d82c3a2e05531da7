"""Conversations in the format of OpenAI's chat completions endpoint: from a request to its answers."""

from __future__ import annotations

import math
from typing import Any

from polyhead.chat.base import ToolCall, ToolChoice, is_prefill, select_tools
from polyhead.chat.reasoning import ReasoningParser
from polyhead.chat.tool_calls import ToolCallParser
from polyhead.core.errors import UserError
from polyhead.generation.chat import ChatSession
from polyhead.generation.text_engine import PreparedRequest
from polyhead.serve.api_errors import ApiError, invalid_value_error, unsupported_parameter_error
from polyhead.serve.engine_thread import ClientStream, OutputDelta
from polyhead.serve.http.http_exchange import HttpExchange
from polyhead.serve.openai.completions import send_choices, warn_shortened_output
from polyhead.serve.openai.logprobs import CHAT_LOGPROB_CHARS, check_logprobs_size, format_chat_logprobs
from polyhead.serve.openai.request_builder import build_requests, count_reading_chars
from polyhead.serve.openai.schemas import ChatBody
from polyhead.serve.service import Service


class AssistantMessage:
    """One answer to a conversation, streamed or complete."""

    def __init__(self, session: ChatSession, body: ChatBody, tools: ToolChoice) -> None:
        self._tool_parser = self._reasoning_parser = None
        if session.tool_syntax and tools.all_tools:
            self._tool_parser = ToolCallParser(session.tool_syntax, tools)
        if session.reasoning:
            self._reasoning_parser = ReasoningParser(session.reasoning, body.messages, body.thinks)
        self._is_started = False
        self.num_calls = 0  # sent so far

    def next_delta(self, text: str, is_last: bool) -> dict[str, Any]:
        """Return the delta for new text, to be appended by the client."""
        fields, content, calls = self._parse(text, is_last)
        delta = ({} if self._is_started else {"role": "assistant"}) | fields
        if calls:
            delta["tool_calls"] = [{"index": self.num_calls + i, **call} for i, call in enumerate(calls)]
        self._is_started, self.num_calls = True, self.num_calls + len(calls)
        if content or not (self._tool_parser or fields) or (is_last and not self.num_calls):
            delta["content"] = content
        return delta

    def full_message(self, text: str) -> dict[str, Any]:
        """Return the complete message; content is null if there are only tool calls."""
        fields, content, calls = self._parse(text, True)
        self.num_calls = len(calls)
        has_content = content or not (calls or fields)
        message = {"role": "assistant", "content": content if has_content else None, "refusal": None}
        return message | fields | ({"tool_calls": calls} if calls else {})

    def _parse(self, text: str, is_last: bool) -> tuple[dict[str, Any], str, list[dict[str, Any]]]:
        """Parse new text into the fields of reasoning, the content after it, and the tool calls."""
        reasoning, calls = "", list[ToolCall]()
        if self._reasoning_parser:
            reasoning, text = self._reasoning_parser.feed(text, is_last)
        if self._tool_parser:
            text, calls = self._tool_parser.feed(text, is_last)
        # the name in vLLM, and the older one that more clients read
        fields = {"reasoning": reasoning, "reasoning_content": reasoning} if reasoning else {}
        call_fields = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments, id in calls
        ]
        return fields, text, call_fields


async def create_chat_completion(service: Service, exchange: HttpExchange, body: ChatBody) -> None:
    """Answer the last message of a conversation."""
    session, tools = _check_body(service, body), ToolChoice()
    if {"tools", "tool_choice"} & body.model_fields_set:
        tools = _choose_tools(session, body, service.limits.max_chars)
    # a required tool call has a grammar too
    num_chars = math.inf if body.tools else count_reading_chars(service, body, body.num_chars)
    answers = [AssistantMessage(session, body, tools) for _ in range(body.n)]

    def make_choice(stream: ClientStream, output: OutputDelta) -> dict[str, Any]:
        answer, reason, is_last = answers[output.row], output.finish_reason, output.finish_reason is not None
        message = (
            {"delta": answer.next_delta(output.text, is_last)}
            if body.stream
            else {"message": answer.full_message(output.text)}
        )
        return {
            "index": output.row,
            **message,
            "logprobs": format_chat_logprobs(service.run, output.logprobs) if body.logprobs else None,
            "finish_reason": "tool_calls" if answer.num_calls and reason == "stop" else reason,
        }

    async with service.open_streams(
        lambda: [_build_request(service, session, body, tools)], 1, num_chars, is_streaming=body.stream
    ) as streams:
        warn_shortened_output(exchange, body, streams)
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        await send_choices(service, exchange, body, streams, "chatcmpl", kind, make_choice)


def _check_body(service: Service, body: ChatBody) -> ChatSession:
    """Return the chat session, or reject what the model does not support and settings that contradict others.

    A last message of the assistant is continued, no other is.
    """
    if (session := service.chat) is None:
        reason = (
            "its chat format is unknown; start the service with --chat NAME to set it"
            if service.kind == "decoder"
            else f"it is not a language model; use /v1/{service.tasks[0]}"
        )
        message = f"{service.name} does not support conversations: {reason}"
        raise ApiError(400, "model_not_chat", message, "model")
    if "max_completion_tokens" in body.model_fields_set:
        body.max_tokens = body.max_completion_tokens
    if body.top_logprobs and not body.logprobs:
        raise invalid_value_error("top_logprobs", "top_logprobs requires logprobs=true")
    if body.logprobs and "beam_size" in body.model_fields_set:
        raise unsupported_parameter_error("logprobs", "logprobs are supported only for sampled text")
    continues = is_prefill(body.messages)
    for name, opposite in (("continue_final_message", not continues), ("add_generation_prompt", continues)):
        if getattr(body, name) is opposite:
            reason = (
                "is continued" if continues else "is not one of the assistant, so an answer to it is started"
            )
            given = "true" if opposite else "false"
            raise invalid_value_error(name, f"{name}: {given}, but the last message {reason}")
    if not body.thinks and session.reasoning is None:
        raise unsupported_parameter_error(
            "chat_template_kwargs", "chat_template_kwargs.enable_thinking: this chat format has no reasoning"
        )
    return session


def _choose_tools(chat: ChatSession, body: ChatBody, max_chars: int) -> ToolChoice:
    """Select the tools that the answer may or must call; ``max_chars`` limits their description."""
    try:
        tools = select_tools(body.tools, body.tool_choice, body.parallel_tool_calls is not False)
    except UserError as error:
        raise invalid_value_error("tool_choice", f"tool_choice: {error}") from None
    if tools.all_tools:
        try:
            length = chat.count_overhead_chars(tools)
        except UserError as error:  # this chat format cannot write them
            raise unsupported_parameter_error("tools", f"tools: {error}") from None
        if length > max_chars:
            message = (
                f"tools: in the model's format they have {length} characters; the maximum is {max_chars}"
            )
            raise ApiError(400, "text_too_long", message, "tools")
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


def _build_request(service: Service, chat: ChatSession, body: ChatBody, tools: ToolChoice) -> PreparedRequest:
    """Encode the conversation, without its oldest turns if truncation is requested and they do not fit."""
    try:
        if body.truncate:
            ids = _encode_truncated(service, chat, body, tools)
        else:
            ids = chat.encode_prompt(body.messages, tools, body.thinks)
        options = chat.build_options(body.messages, tools) | {"top_logprobs": body.top_logprobs}
        (request,) = build_requests(service, body, [ids], **options)
    except UserError as error:
        raise invalid_value_error("messages", f"messages: {error}") from None
    except ApiError as refusal:
        if refusal.param == "prompt":
            refusal.param = "messages"
        elif chat.tool_syntax and tools.required_tools and refusal.param == "response_format":
            # the grammar of a tool call
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
    if "max_tokens" in body.model_fields_set and num_new < max_len:
        fallback, hint = 0, f", or request less than max_tokens={num_new}"
    else:
        num_new, fallback, hint = min(service.default_max_tokens, max_len // 2), max_len - 1, ""
    try:
        return chat.truncate_history(body.messages, max_len - num_new, tools, fallback, body.thinks).ids
    except UserError as error:
        raise ApiError(400, "context_length_exceeded", f"{error}{hint}", "messages") from None
