"""Conversations in the format of OpenAI's chat completions endpoint, complete or streamed."""

from __future__ import annotations

from typing import Any

from polyhead.generation.text_output import TokenLogprobs
from polyhead.serve.client_stream import ClientStream, OutputDelta
from polyhead.serve.http.http_exchange import HttpExchange
from polyhead.serve.openai.chat_session import open_chat
from polyhead.serve.openai.completions import make_response_head, stream_chunks, warn_shortened_output
from polyhead.serve.openai.logprobs import format_chat_logprobs
from polyhead.serve.openai.schemas import ChatBody
from polyhead.serve.service import Service


async def create_chat_completion(service: Service, exchange: HttpExchange, body: ChatBody) -> None:
    """Answer the last message of a conversation."""
    if "max_completion_tokens" in body.model_fields_set:
        body.max_tokens = body.max_completion_tokens

    def format_logprobs(logprobs: TokenLogprobs) -> dict[str, Any] | None:
        return format_chat_logprobs(service.run, logprobs) if body.logprobs else None

    async with open_chat(service, body) as (streams, answers):
        warn_shortened_output(exchange, body, streams)

        def make_chunk(stream: ClientStream, delta: OutputDelta) -> dict[str, Any]:
            answer = answers[delta.row]
            return {
                "index": delta.row,
                "delta": answer.next_delta(delta.text, delta.is_last),
                "logprobs": format_logprobs(delta.logprobs),
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
                "logprobs": format_logprobs(result.logprobs),
                "finish_reason": answers[result.row].finish_reason(member, result.row),
            }
            for result in member.results()
        ]
        usage = service.count_usage(streams.members)
        head = make_response_head("chatcmpl", "chat.completion", service)
        await exchange.send_json({**head, "choices": choices, "usage": usage})
