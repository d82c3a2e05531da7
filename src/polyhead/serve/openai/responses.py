"""Conversations in the format of OpenAI's responses endpoint, complete or streamed.

Responses are not stored: a client that continues a conversation sends all of it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any
from uuid import uuid4

from polyhead.chat import base
from polyhead.serve.api_errors import ApiError, invalid_value_error
from polyhead.serve.client_stream import ClientStream, OutputDelta
from polyhead.serve.http.http_exchange import HttpExchange
from polyhead.serve.openai.chat_completions import AssistantMessage, open_chat
from polyhead.serve.openai.completions import forward_events, get_finish_reason, warn_shortened_output
from polyhead.serve.openai.logprobs import format_chat_logprobs
from polyhead.serve.openai.schemas import (
    INCLUDE_LOGPROBS,
    ChatBody,
    JsonSchemaFormat,
    ResponseBody,
    ResponseFormat,
)
from polyhead.serve.service import Service

# field names of chat completions -> those of responses
MESSAGE_WORDS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "truncate=true": "truncation=auto",
    "logprobs=true": f"include=[{INCLUDE_LOGPROBS!r}]",
}
PARAM_NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text",
    "logprobs": "include"}  # fmt: skip

Event = dict[str, Any]


async def create_response(service: Service, exchange: HttpExchange, body: ResponseBody) -> None:
    """Answer the last input item."""
    with _rename_error_fields(body):
        chat_body = _to_chat_body(body)
        async with open_chat(service, chat_body) as (streams, answers):
            warn_shortened_output(exchange, chat_body, streams)
            response = ResponseBuilder(service, body, answers[0])

            def make_events(stream: ClientStream, delta: OutputDelta) -> list[Event]:
                entries = (
                    format_chat_logprobs(service.run, delta.logprobs)["content"] if chat_body.logprobs else ()
                )
                return list(
                    response.feed(
                        delta.text, entries, get_finish_reason(stream, 0) if delta.is_last else None
                    )
                )

            if body.stream:
                exchange.make_error_event = response.error_event
                await exchange.start_stream()
                await exchange.send_events(response.start_events())
                await forward_events(exchange, streams, make_events)
                await exchange.send_events([response.finish(service.count_usage(streams.members))])
                await exchange.end_stream(b"")
                return
            await streams.wait_finished()
            for result in streams.members[0].results():
                make_events(streams.members[0], result)
            await exchange.send_json(response.finish(service.count_usage(streams.members))["response"])


class ResponseBuilder:
    """Builds one response incrementally: every stretch of text and every tool call is an output item."""

    def __init__(self, service: Service, body: ResponseBody, answer: AssistantMessage) -> None:
        assert service.engine is not None
        self._answer, self._sequence_number, self._finish_reason = answer, 0, "stop"
        self._items: list[dict[str, Any]] = []  # completed items
        self._text_parts: list[str] = []  # of the current text item
        self._logprobs: list[dict[str, Any]] = []  # of its tokens
        self._num_sent_logprobs = 0  # how many of them belong to the text sent so far
        self._unclaimed_bytes = 0  # bytes of that text after these tokens
        self._byte_offset = 0  # byte of the output at which they begin
        self._item_id = ""  # of the current text item; "" if there is none
        self._reasoning_id, self._reasoning_parts = "", list[str]()  # of the current reasoning item
        self._tokenizer = service.run.tokenizer
        config, fields_set = service.engine.config, body.model_fields_set
        self._fields: dict[str, Any] = {
            "id": _make_id("resp"), "object": "response", "created_at": int(time.time()),
                "status": "in_progress",
            "background": False, "error": None, "incomplete_details": None, "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens if "max_output_tokens" in fields_set else None,
            "metadata": body.metadata or {}, "model": service.name, "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False, "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None}, "store": False,
            "temperature": body.temperature if "temperature" in fields_set else config.temperature,
            "text": {"format": body.text.format.model_dump(by_alias=True, exclude_none=True)},
            "tool_choice": body.tool_choice if isinstance(body.tool_choice, str)
                else {"type": "function", "name": body.tool_choice[0]},
            "tools": [{"type": "function", "parameters": None, "strict": None, **tool.definition["function"]}
                for tool in body.tools],
            "top_logprobs": body.top_logprobs, "top_p": body.top_p if "top_p" in fields_set else config.top_p,
            "truncation": body.truncation or "disabled", "usage": None,
        }  # fmt: skip

    def start_events(self) -> list[Event]:
        """Return the events that announce the response."""
        return [
            self._make_event(kind, response=dict(self._fields)) for kind in ("response.created",
                "response.in_progress")
        ]  # fmt: skip

    def feed(
        self, text: str, logprobs: Sequence[dict[str, Any]] = (), finish_reason: str | None = None
    ) -> Iterator[Event]:
        """Add text and the log-probabilities of its tokens; yield the new events.

        A ``finish_reason`` ends the response.
        """
        self._logprobs += logprobs
        for reasoning, segment, calls in self._answer.parse_delta(text, finish_reason is not None):
            if reasoning:
                yield from self._add_reasoning(reasoning)
            if segment or calls:
                yield from self._finish_reasoning("completed")
            if segment:
                yield from self._add_text(segment)
            for call in calls:
                yield from self._finish_text("completed", before_call=True)
                yield from self._add_call(call)
                self._logprobs = self._logprobs_from(self._answer.consumed_bytes)
        if finish_reason:
            is_cut = finish_reason != "stop" and not self._item_id
            yield from self._finish_reasoning("incomplete" if is_cut else "completed")
        if finish_reason and not self._items and not self._item_id:
            yield from self._add_text("")
        if finish_reason:
            self._finish_reason = finish_reason
            yield from self._finish_text("completed" if finish_reason == "stop" else "incomplete")

    def finish(self, usage: dict[str, Any]) -> Event:
        """Return the final event, with the complete response."""
        status = "completed" if self._finish_reason == "stop" else "incomplete"
        details = {"reason": "max_output_tokens"} if self._finish_reason == "length" else None
        usage_fields = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._count_reasoning_tokens()},
            "total_tokens": usage["total_tokens"],
        }
        response = self._fields | {
            "status": status,
            "incomplete_details": details,
            "output": self._items,
            "usage": usage_fields,
        }
        return self._make_event(f"response.{status}", response=response)

    def error_event(self, api_error: ApiError) -> Event:
        """Return an error event, in the format of this endpoint and with the common error envelope."""
        error = api_error.envelope["error"]
        return self._make_event(
            "error", **api_error.envelope, **{key: error[key] for key in ("code", "message", "param")}
        )

    def _add_reasoning(self, text: str) -> Iterator[Event]:
        if not self._reasoning_id:
            self._reasoning_id = _make_id("rs")
            yield self._item_event("output_item.added", item=self._reasoning_item("in_progress", []))
            part = {"type": "reasoning_text", "text": ""}
            yield self._item_event("content_part.added", **self._reasoning_location(), part=part)
        self._reasoning_parts.append(text)
        yield self._item_event("reasoning_text.delta", **self._reasoning_location(), delta=text)

    def _finish_reasoning(self, status: str) -> Iterator[Event]:
        """Close the reasoning item, if there is one; its tokens are not those of the text."""
        if not self._reasoning_id:
            return
        part = {"type": "reasoning_text", "text": "".join(self._reasoning_parts)}
        yield self._item_event("reasoning_text.done", **self._reasoning_location(), text=part["text"])
        yield self._item_event("content_part.done", **self._reasoning_location(), part=part)
        item = self._reasoning_item(status, [part])
        yield self._item_event("output_item.done", item=item)
        self._items.append(item)
        self._reasoning_id = ""
        self._logprobs = self._logprobs_from(self._answer.reasoning_bytes)

    def _reasoning_item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self._reasoning_id, "type": "reasoning", "status": status}
        return {**head, "summary": [], "content": content}

    def _reasoning_location(self) -> dict[str, Any]:
        return {"item_id": self._reasoning_id, "content_index": 0}

    def _count_reasoning_tokens(self) -> int:
        return (
            len(self._tokenizer.encode(["".join(self._reasoning_parts)])[0]) if self._reasoning_parts else 0
        )

    def _add_text(self, text: str) -> Iterator[Event]:
        if not self._item_id:
            self._item_id = _make_id("msg")
            yield self._item_event("output_item.added", item=self._message_item("in_progress", []))
            yield self._item_event("content_part.added", **self._content_location(), part=_text_part("", []))
        self._text_parts.append(text)
        if text:
            self._unclaimed_bytes += len(text.encode())
            logprobs = list(takewhile(self._claim_bytes, self._logprobs[self._num_sent_logprobs :]))
            self._num_sent_logprobs += len(logprobs)
            yield self._item_event(
                "output_text.delta", **self._content_location(), delta=text, logprobs=logprobs
            )

    def _finish_text(self, status: str, before_call: bool = False) -> Iterator[Event]:
        """Close the current text item, if there is one.

        With ``before_call`` the tokens after its text belong to the tool call, not to the text.
        """
        if not self._item_id:
            return
        text = "".join(self._text_parts)
        logprobs = self._logprobs[: self._num_sent_logprobs] if before_call else self._logprobs
        yield self._item_event("output_text.done", **self._content_location(), text=text, logprobs=logprobs)
        yield self._item_event(
            "content_part.done", **self._content_location(), part=_text_part(text, logprobs)
        )
        item = self._message_item(status, [_text_part(text, logprobs)])
        yield self._item_event("output_item.done", item=item)
        self._items.append(item)
        self._item_id, self._text_parts, self._num_sent_logprobs, self._unclaimed_bytes = "", [], 0, 0

    def _claim_bytes(self, token: dict[str, Any]) -> bool:
        """Whether a token belongs to the text sent so far; if so, subtract its unclaimed bytes."""
        size = len(token["bytes"] or ())
        fits = size <= self._unclaimed_bytes
        self._unclaimed_bytes -= size * fits
        return fits

    def _logprobs_from(self, byte_offset: int) -> list[dict[str, Any]]:
        """Return the tokens that start at ``byte_offset`` or later.

        Tokens of a tool call that ends there belong to no item.
        """
        begin = self._byte_offset
        for at, token in enumerate(self._logprobs):
            if begin >= byte_offset:
                self._byte_offset = begin
                return self._logprobs[at:]
            begin += len(token["bytes"] or ())
        self._byte_offset = begin
        return []

    def _add_call(self, call: base.ToolCall) -> Iterator[Event]:
        item = {
            "id": _make_id("fc"), "type": "function_call", "status": "in_progress", "call_id": call.id,
            "name": call.name, "arguments": "",
        }  # fmt: skip
        yield self._item_event("output_item.added", item=item)
        at = {"item_id": item["id"]}
        yield self._item_event("function_call_arguments.delta", **at, delta=call.arguments)
        yield self._item_event("function_call_arguments.done", **at, name=call.name, arguments=call.arguments)
        item = item | {"status": "completed", "arguments": call.arguments}
        yield self._item_event("output_item.done", item=item)
        self._items.append(item)

    def _message_item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _content_location(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "content_index": 0}

    def _item_event(self, kind: str, **fields: Any) -> Event:
        """Return an event of the next item."""
        return self._make_event(f"response.{kind}", output_index=len(self._items), **fields)

    def _make_event(self, kind: str, **fields: Any) -> Event:
        self._sequence_number += 1
        return {"type": kind, "sequence_number": self._sequence_number - 1, **fields}


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _make_id(kind: str) -> str:
    return f"{kind}_{uuid4().hex}"


def _to_chat_body(body: ResponseBody) -> ChatBody:
    """Convert the request to a chat completions request."""
    fields = {name: getattr(body, name) for name in body.model_fields_set & ChatBody.model_fields.keys()}
    if body.n != 1:
        raise invalid_value_error("n", f"n: a response has one answer, but n is {body.n}")
    fields["messages"] = body.input
    if body.instructions is not None:
        fields["messages"] = body.input.with_system(body.instructions)
    if "max_output_tokens" in body.model_fields_set:
        fields["max_tokens"] = body.max_output_tokens
    if INCLUDE_LOGPROBS in body.include:
        fields["logprobs"] = True
    if body.truncation == "auto":
        fields["truncate"] = True
    if "format" in body.text.model_fields_set:
        fields["response_format"] = _make_response_format(body)
    return ChatBody.model_construct(**fields)


def _make_response_format(body: ResponseBody) -> ResponseFormat:
    shape = body.text.format
    if shape.type != "json_schema":
        return ResponseFormat(type=shape.type)
    if shape.schema_ is None:
        raise invalid_value_error("text", "text.format: schema is missing")
    return ResponseFormat(type=shape.type, json_schema=JsonSchemaFormat(schema=shape.schema_))


@contextmanager
def _rename_error_fields(body: ResponseBody) -> Iterator[None]:
    """Convert errors to this endpoint: its field names, and item numbers for message numbers."""
    items = ["instructions"] * (body.instructions is not None) + [
        f"item {number}" for number in body.input.item_indices
    ]
    words = MESSAGE_WORDS | {f"message {i}": item for i, item in enumerate(items)}
    try:
        yield
    except ApiError as refusal:
        # quoted names, such as those of tools, come from the client
        pattern = re.compile(rf"(?<!['\"])\b({'|'.join(map(re.escape, words))})\b")
        refusal.message = pattern.sub(lambda found: words[found[1]], refusal.message)
        refusal.param = PARAM_NAMES.get(refusal.param or "", refusal.param)
        raise
