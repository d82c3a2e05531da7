"""Conversations, in the shape of OpenAI's chat completions, whole or as they come."""

from __future__ import annotations

from typing import Any

from polyhead.generate.outcome import Likely
from polyhead.serve.bodies import ChatBody
from polyhead.serve.call import Call
from polyhead.serve.completions import head, stream
from polyhead.serve.conversations import conversing
from polyhead.serve.likelihood import of_chat
from polyhead.serve.service import Service
from polyhead.serve.talk import Piece, Talk


async def chat(service: Service, call: Call, body: ChatBody) -> None:
    """Answer the last message of a conversation."""
    if "max_completion_tokens" in body.model_fields_set:
        body.max_tokens = body.max_completion_tokens

    def log_probs(likely: Likely) -> dict[str, Any] | None:
        return of_chat(service.run, likely) if body.logprobs else None

    async with conversing(service, body) as (talks, answers):

        def chunk(talk: Talk, piece: Piece) -> dict[str, Any]:
            answer = answers[piece.row]
            return {
                "index": piece.row,
                "delta": answer.delta(piece.text, piece.last),
                "logprobs": log_probs(piece.likely),
                "finish_reason": answer.reason(talk, piece.row) if piece.last else None,
            }

        if body.stream:
            about = head("chatcmpl", "chat.completion.chunk", service)
            await stream(service, call, body, talks, about, "choices", chunk)
            return
        await talks.whole()
        (talk,) = talks.all
        choices = [
            {
                "index": piece.row,
                "message": answers[piece.row].message(piece.text),
                "logprobs": log_probs(piece.likely),
                "finish_reason": answers[piece.row].reason(talk, piece.row),
            }
            for piece in talk.whole()
        ]
        usage = service.count(talks.all)
        about = head("chatcmpl", "chat.completion", service)
        await call.reply({**about, "choices": choices, "usage": usage})
