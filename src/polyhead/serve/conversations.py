"""Conversations between a request and the engine: what may be called, how much is read, and the answers that come of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from polyhead.errors import UserError
from polyhead.generate.chat import Chat
from polyhead.generate.service import Asked
from polyhead.serve.answers import Answer
from polyhead.serve.bodies import ChatBody
from polyhead.serve.likelihood import ENTRY, check_size
from polyhead.serve.refusal import Refusal, invalid, unsupported
from polyhead.serve.service import Service
from polyhead.serve.sizes import conversation
from polyhead.serve.talk import Talks
from polyhead.serve.wishes import asked, usual_length
from polyhead.text.chat.base import Message
from polyhead.text.chat.tools import Tools, wanted


class Conversation(NamedTuple):
    """A conversation that the engine goes on with, and its answers by their numbers."""

    talks: Talks
    answers: defaultdict[int, Answer]


@asynccontextmanager
async def conversing(service: Service, body: ChatBody) -> AsyncIterator[Conversation]:
    """A conversation that the engine has taken, until it is left."""
    talker = _talker(service)
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs", "top_logprobs: send logprobs=true with it")
    if body.logprobs and "beam_size" in body.model_fields_set:
        raise unsupported("logprobs", "logprobs are given for sampled text only")
    tools = _tools(talker, body, service.limits.chars)
    said = [conversation(body.messages, tools.all)]
    async with service.talking(lambda: [_read(service, talker, body, tools)], said, body) as talks:
        yield Conversation(talks, defaultdict(lambda: Answer(talker.calls, tools)))


def _talker(service: Service) -> Chat:
    if service.chat is None:
        other = "nothing says how it writes them; start the service with --chat NAME if you know"
        why = other if service.kind == "decoder" else f"it is no language model; use /v1/{service.tasks[0]}"
        raise Refusal(400, "model_not_chat", f"{service.name} holds no conversations: {why}", "model")
    return service.chat


def _tools(talker: Chat, body: ChatBody, most: int) -> Tools:
    """What the answer may call, and what it must; ``most`` characters may describe it."""
    try:
        tools = wanted(body.tools, body.tool_choice, body.parallel_tool_calls is not False)
    except UserError as error:
        raise invalid("tool_choice", f"tool_choice: {error}") from None
    try:
        length = talker.length(tools)
    except UserError as error:
        raise unsupported("tools", f"tools: {error}") from None
    if tools.all and length > most:
        why = f"tools: written as this model reads them they have {length} characters; this service takes {most}"
        raise Refusal(400, "text_too_long", why, "tools")
    if tools.must and body.stop:
        raise invalid("stop", "stop: an answer that must call a function ends with the call: leave it out")
    asked = body.response_format is not None and body.response_format.type != "text"
    if tools.must and (asked or body.structured_outputs):
        raise invalid(
            "tool_choice",
            "tool_choice: an answer that must call a function has no other form: leave out "
            + ("response_format" if asked else "structured_outputs"),
        )
    return tools


def _read(service: Service, talker: Chat, body: ChatBody, tools: Tools) -> Asked:
    """The conversation as tokens, without its oldest questions where truncation is wished and they do not fit."""
    messages = body.messages
    try:
        if body.truncate:
            messages = _cut(service, talker, body, tools)
        manner = talker.manner(tools) | {"top": body.top_logprobs}
        (found,) = asked(service, body, [talker.prompt(messages, tools)], **manner)
    except UserError as error:
        raise invalid("messages", f"messages: {error}") from None
    except Refusal as refusal:
        if refusal.param == "prompt":
            refusal.param = "messages"
        elif talker.calls and tools.must and refusal.param == "response_format":  # the form of a call
            refusal.param, refusal.message = "tools", talker.calls.unfit(refusal.message, tools)
        raise
    if body.logprobs:
        check_size(service, [found], body.top_logprobs, ENTRY, "top_logprobs")
    return found


def _cut(service: Service, talker: Chat, body: ChatBody, tools: Tools) -> list[Message]:
    """The conversation without its oldest questions, as far as the answer has room: all that is wished for.

    Where no length is wished, the usual one, but at most half of what the model reads, and one token rather than none.
    """
    most = talker.engine.max_len
    given = "max_tokens" in body.model_fields_set
    usual = min(usual_length(service, talker.engine), most // 2)
    for room in [body.max_tokens] if given else [usual, 1]:
        try:
            return talker.fitting(body.messages, most + 1 - room, tools)
        except UserError as error:
            said = str(error)
    shorter = f", or ask for less than max_tokens={body.max_tokens}" if given else ""
    raise Refusal(400, "context_length_exceeded", said + shorter, "messages")
