"""Conversations, in the shape of OpenAI's chat completions, whole or as they come."""

from __future__ import annotations

from typing import Any

from polyhead.errors import UserError
from polyhead.generate.chat import Chat
from polyhead.generate.service import Asked, Likely
from polyhead.serve.bodies import ChatBody, conversation
from polyhead.serve.call import Call
from polyhead.serve.likelihood import ENTRY, check_size, of_chat
from polyhead.serve.refusal import Refusal
from polyhead.serve.service import Service
from polyhead.serve.speaking import head, reason_of, stream
from polyhead.serve.talk import Piece, Talk
from polyhead.serve.wishes import asked, usual_length
from polyhead.text.chat.base import Message


async def chat(service: Service, call: Call, body: ChatBody) -> None:
    """Answer the last message of a conversation."""
    talker = _talker(service)
    if body.top_logprobs and not body.logprobs:
        raise Refusal(400, "invalid_value", "top_logprobs: send logprobs=true with it", "top_logprobs")
    if body.logprobs and "beam_size" in body.model_fields_set:
        raise Refusal(400, "unsupported_parameter", "logprobs are told of drawn text alone", "logprobs")
    if "max_completion_tokens" in body.model_fields_set:
        body.max_tokens = body.max_completion_tokens
    begun: set[int] = set()

    def log_probs(likely: Likely) -> dict[str, Any] | None:
        return of_chat(service.run, likely) if body.logprobs else None

    def chunk(talk: Talk, piece: Piece) -> dict[str, Any]:
        delta = (
            {"content": piece.text} if piece.row in begun else {"role": "assistant", "content": piece.text}
        )
        begun.add(piece.row)
        return {
            "index": piece.row,
            "delta": delta,
            "logprobs": log_probs(piece.likely),
            "finish_reason": reason_of(talk, piece.row) if piece.last else None,
        }

    said = [conversation(body.messages)]
    async with service.talking(lambda: [_read(service, talker, body)], said, body) as talks:
        if body.stream:
            about = head("chatcmpl", "chat.completion.chunk", service)
            await stream(service, call, body, talks, about, "choices", chunk)
            return
        await talks.whole()
        (found,) = (talk.stream for talk in talks.all)
        assert found is not None
        choices = [
            {
                "index": row,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": log_probs(found.likely(row)),
                "finish_reason": reason_of(talks.all[0], row),
            }
            for row, text in enumerate(found.texts())
        ]
        usage = service.count(talks.all)
        about = head("chatcmpl", "chat.completion", service)
        await call.reply({**about, "choices": choices, "usage": usage})


def _talker(service: Service) -> Chat:
    if service.chat is None:
        other = "nothing says how it writes them; start the service with --chat NAME if you know"
        why = other if service.kind == "decoder" else f"it is no language model; use /v1/{service.tasks[0]}"
        raise Refusal(400, "model_not_chat", f"{service.name} holds no conversations: {why}", "model")
    return service.chat


def _read(service: Service, talker: Chat, body: ChatBody) -> Asked:
    """The conversation as tokens, without its oldest questions where truncation is wished and they do not fit."""
    messages = body.messages
    try:
        if body.truncate:
            messages = _cut(service, talker, body)
        wishes = {"ends": talker.ends, "trim": talker.format.trims, "top": body.top_logprobs}
        (found,) = asked(service, body, [talker.prompt(messages)], **wishes)
    except UserError as error:
        raise Refusal(400, "invalid_value", f"messages: {error}", "messages") from None
    except Refusal as refusal:
        if refusal.param == "prompt":
            refusal.param = "messages"
        raise
    if body.logprobs:
        check_size(service, [found], body.top_logprobs, ENTRY, "top_logprobs")
    return found


def _cut(service: Service, talker: Chat, body: ChatBody) -> list[Message]:
    """The conversation without its oldest questions, as far as the answer has room: all that is wished for.

    Where no length is wished, the usual one, but at most half of what the model reads, and one token rather than none.
    """
    most = talker.engine.max_len
    given = "max_tokens" in body.model_fields_set
    usual = min(usual_length(service, talker.engine), most // 2)
    for wanted in [body.max_tokens] if given else [usual, 1]:
        try:
            return talker.fitting(body.messages, most + 1 - wanted)
        except UserError as error:
            said = str(error)
    shorter = f", or ask for less than max_tokens={body.max_tokens}" if given else ""
    raise Refusal(400, "context_length_exceeded", said + shorter, "messages")
