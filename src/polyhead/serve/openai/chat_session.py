"""From a chat request to the engine: tool choice, truncation of the conversation, and the answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from polyhead.chat.base import Message
from polyhead.chat.tools import ToolChoice, select_tools
from polyhead.core.errors import UserError
from polyhead.generation.chat import ChatSession
from polyhead.generation.text_engine import PreparedRequest
from polyhead.serve.client_stream import ClientStreams
from polyhead.serve.http.errors import ApiError, invalid_value_error, unsupported_parameter_error
from polyhead.serve.openai.assistant_message import AssistantMessage
from polyhead.serve.openai.input_limits import conversation_text
from polyhead.serve.openai.logprobs import CHAT_LOGPROB_CHARS, check_logprobs_size
from polyhead.serve.openai.request_builder import build_requests, default_max_tokens
from polyhead.serve.openai.schemas import ChatBody
from polyhead.serve.service import Service


class OpenChat(NamedTuple):
    """A conversation submitted to the engine, and its answers by output row."""

    streams: ClientStreams
    messages: defaultdict[int, AssistantMessage]


@asynccontextmanager
async def open_chat(service: Service, body: ChatBody) -> AsyncIterator[OpenChat]:
    """Submit a conversation to the engine; leaving the context aborts it."""
    session = _require_chat(service)
    if body.top_logprobs and not body.logprobs:
        raise invalid_value_error("top_logprobs", "top_logprobs: send logprobs=true with it")
    if body.logprobs and "beam_size" in body.model_fields_set:
        raise unsupported_parameter_error("logprobs", "logprobs are given for sampled text only")
    tools = _choose_tools(session, body, service.limits.chars)
    texts = [conversation_text(body.messages, tools.all_tools)]
    async with service.open_streams(
        lambda: [_build_request(service, session, body, tools)], texts, body
    ) as streams:
        yield OpenChat(streams, defaultdict(lambda: AssistantMessage(session.tool_syntax, tools)))


def _require_chat(service: Service) -> ChatSession:
    if service.chat is None:
        hint = "nothing says how it writes them; start the service with --chat NAME if you know"
        reason = hint if service.kind == "decoder" else f"it is no language model; use /v1/{service.tasks[0]}"
        raise ApiError(400, "model_not_chat", f"{service.name} holds no conversations: {reason}", "model")
    return service.chat


def _choose_tools(chat: ChatSession, body: ChatBody, max_chars: int) -> ToolChoice:
    """Select the tools that the answer may or must call; ``max_chars`` limits their description."""
    try:
        tools = select_tools(body.tools, body.tool_choice, body.parallel_tool_calls is not False)
    except UserError as error:
        raise invalid_value_error("tool_choice", f"tool_choice: {error}") from None
    try:
        length = chat.count_overhead_chars(tools)
    except UserError as error:
        raise unsupported_parameter_error("tools", f"tools: {error}") from None
    if tools.all_tools and length > max_chars:
        message = f"tools: written as this model reads them they have {length} characters; this service takes {max_chars}"
        raise ApiError(400, "text_too_long", message, "tools")
    if tools.required_tools and body.stop:
        raise invalid_value_error(
            "stop", "stop: an answer that must call a function ends with the call: leave it out"
        )
    has_format = body.response_format is not None and body.response_format.type != "text"
    if tools.required_tools and (has_format or body.structured_outputs):
        raise invalid_value_error(
            "tool_choice",
            "tool_choice: an answer that must call a function has no other form: leave out "
            + ("response_format" if has_format else "structured_outputs"),
        )
    return tools


def _build_request(service: Service, chat: ChatSession, body: ChatBody, tools: ToolChoice) -> PreparedRequest:
    """Encode the conversation, without its oldest turns if truncation is requested and they do not fit."""
    messages = body.messages
    try:
        if body.truncate:
            messages = _truncate_messages(service, chat, body, tools)
        options = chat.build_options(tools) | {"top_logprobs": body.top_logprobs}
        (request,) = build_requests(service, body, [chat.encode_prompt(messages, tools)], **options)
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


def _truncate_messages(
    service: Service, chat: ChatSession, body: ChatBody, tools: ToolChoice
) -> list[Message]:
    """Drop the oldest turns of the conversation so that the answer has the requested length.

    Without a requested length the default applies, but at most half of the context, and at least one token.
    """
    max_len = chat.engine.max_len
    is_explicit = "max_tokens" in body.model_fields_set
    default = min(default_max_tokens(service, chat.engine), max_len // 2)
    for room in [body.max_tokens] if is_explicit else [default, 1]:
        try:
            return chat.truncate_history(body.messages, max_len + 1 - room, tools)
        except UserError as error:
            message = str(error)
    hint = f", or ask for less than max_tokens={body.max_tokens}" if is_explicit else ""
    raise ApiError(400, "context_length_exceeded", message + hint, "messages")
