"""Conversations, in the shape of OpenAI's responses, whole or as they come. None is kept: who goes on sends all of it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any
from uuid import uuid4

from polyhead.serve.answers import Answer
from polyhead.serve.bodies import LOG_PROBS, ChatBody, Described, Format, ResponseBody
from polyhead.serve.call import Call
from polyhead.serve.completions import pass_on, reason_of
from polyhead.serve.conversations import conversing
from polyhead.serve.items import choice_shown, tool_shown
from polyhead.serve.likelihood import of_chat
from polyhead.serve.refusal import Refusal, invalid
from polyhead.serve.service import Service
from polyhead.serve.talk import Piece, Talk
from polyhead.text.chat import base

# what chat completions say in other words
OTHERWISE = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "truncate=true": "truncation=auto",
    "logprobs=true": f"include=[{LOG_PROBS!r}]",
}
PARAMS = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text", "logprobs": "include"}  # fmt: skip

Event = dict[str, Any]


async def respond(service: Service, call: Call, body: ResponseBody) -> None:
    """Answer what is said last."""
    with _in_other_words(body):
        wish = _as_chat(body)
        async with conversing(service, wish) as (talks, answers):
            response = Response(service, body, answers[0])

            def events(talk: Talk, piece: Piece) -> list[Event]:
                entries = of_chat(service.run, piece.likely)["content"] if wish.logprobs else ()
                return list(response.hear(piece.text, entries, reason_of(talk, 0) if piece.last else None))

            if body.stream:
                call.broken = response.broken
                await call.open()
                await call.events(response.begin())
                await pass_on(call, talks, events)
                await call.events([response.end(service.count(talks.all))])
                await call.close(b"")
                return
            await talks.whole()
            for piece in talks.all[0].whole():
                events(talks.all[0], piece)
            await call.reply(response.end(service.count(talks.all))["response"])


class Response:
    """One response as it grows: each stretch of text, and each call, is an item of it."""

    def __init__(self, service: Service, body: ResponseBody, answer: Answer) -> None:
        assert service.engine is not None
        self._answer, self._number, self._reason = answer, 0, "stop"
        self._items: list[dict[str, Any]] = []  # that are whole
        self._said: list[str] = []  # of the text that is not
        self._likely: list[dict[str, Any]] = []  # its tokens
        self._told_of = 0  # of them, those that the text said so far is made of
        self._room = 0  # bytes of that text behind them
        self._from = 0  # the byte of the answer that they begin at
        self._id = ""  # of its item; none if there is no such text
        config, given = service.engine.config, body.model_fields_set
        self._about: dict[str, Any] = {
            "id": _named("resp"), "object": "response", "created_at": int(time.time()), "status": "in_progress",
            "background": False, "error": None, "incomplete_details": None, "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens if "max_output_tokens" in given else None,
            "metadata": body.metadata or {}, "model": service.name, "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False, "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None}, "store": False,
            "temperature": body.temperature if "temperature" in given else config.temperature,
            "text": {"format": body.text.format.model_dump(by_alias=True, exclude_none=True)},
            "tool_choice": choice_shown(body.tool_choice), "tools": [tool_shown(tool) for tool in body.tools],
            "top_logprobs": body.top_logprobs, "top_p": body.top_p if "top_p" in given else config.top_p,
            "truncation": body.truncation or "disabled", "usage": None,
        }  # fmt: skip

    def begin(self) -> list[Event]:
        """That it is there."""
        return [
            self._event(kind, response=dict(self._about)) for kind in ("response.created", "response.in_progress")
        ]  # fmt: skip

    def hear(
        self, text: str, likely: Sequence[dict[str, Any]] = (), reason: str | None = None
    ) -> Iterator[Event]:
        """What is told of more of the answer, and of its tokens; with a ``reason`` it ends."""
        self._likely += likely
        for said, calls in self._answer.parts(text, reason is not None):
            if said:
                yield from self._says(said)
            for call in calls:
                yield from self._done("completed", before=True)
                yield from self._calls(call)
                self._likely = self._behind(self._answer.passed)
        if reason and not self._items and not self._id:
            yield from self._says("")
        if reason:
            self._reason = reason
            yield from self._done("completed" if reason == "stop" else "incomplete")

    def end(self, usage: dict[str, Any]) -> Event:
        """All of it."""
        status = "completed" if self._reason == "stop" else "incomplete"
        why = {"reason": "max_output_tokens"} if self._reason == "length" else None
        used = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        found = self._about | {
            "status": status,
            "incomplete_details": why,
            "output": self._items,
            "usage": used,
        }
        return self._event(f"response.{status}", response=found)

    def broken(self, refusal: Refusal) -> Event:
        """That it ends before its end, as an event of this route and in the envelope of all others."""
        error = refusal.envelope["error"]
        return self._event(
            "error", **refusal.envelope, **{key: error[key] for key in ("code", "message", "param")}
        )

    def _says(self, text: str) -> Iterator[Event]:
        if not self._id:
            self._id = _named("msg")
            yield self._event_of("output_item.added", item=self._message("in_progress", []))
            yield self._event_of("content_part.added", **self._place(), part=_part("", []))
        self._said.append(text)
        if text:
            self._room += len(text.encode())
            likely = list(takewhile(self._fits, self._likely[self._told_of :]))
            self._told_of += len(likely)
            yield self._event_of("output_text.delta", **self._place(), delta=text, logprobs=likely)

    def _done(self, status: str, before: bool = False) -> Iterator[Event]:
        """The text, if there is one, is whole; ``before`` a call, the tokens behind it are not the text's."""
        if not self._id:
            return
        text = "".join(self._said)
        likely = self._likely[: self._told_of] if before else self._likely
        yield self._event_of("output_text.done", **self._place(), text=text, logprobs=likely)
        yield self._event_of("content_part.done", **self._place(), part=_part(text, likely))
        item = self._message(status, [_part(text, likely)])
        yield self._event_of("output_item.done", item=item)
        self._items.append(item)
        self._id, self._said, self._told_of, self._room = "", [], 0, 0

    def _fits(self, token: dict[str, Any]) -> bool:
        """Whether a token is of the text said so far, which then has less room for others."""
        size = len(token["bytes"] or ())
        fits = size <= self._room
        self._room -= size * fits
        return fits

    def _behind(self, byte: int) -> list[dict[str, Any]]:
        """The tokens that begin there or later: those of a call that ends there are nobody's."""
        begin = self._from
        for at, token in enumerate(self._likely):
            if begin >= byte:
                self._from = begin
                return self._likely[at:]
            begin += len(token["bytes"] or ())
        self._from = begin
        return []

    def _calls(self, call: base.Call) -> Iterator[Event]:
        item = {
            "id": _named("fc"), "type": "function_call", "status": "in_progress", "call_id": call.id,
            "name": call.name, "arguments": "",
        }  # fmt: skip
        yield self._event_of("output_item.added", item=item)
        at = {"item_id": item["id"]}
        yield self._event_of("function_call_arguments.delta", **at, delta=call.arguments)
        yield self._event_of("function_call_arguments.done", **at, name=call.name, arguments=call.arguments)
        item = item | {"status": "completed", "arguments": call.arguments}
        yield self._event_of("output_item.done", item=item)
        self._items.append(item)

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "content_index": 0}

    def _event_of(self, kind: str, **what: Any) -> Event:
        """An event of the item that comes next."""
        return self._event(f"response.{kind}", output_index=len(self._items), **what)

    def _event(self, kind: str, **what: Any) -> Event:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **what}


def _part(text: str, likely: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": likely}


def _named(kind: str) -> str:
    return f"{kind}_{uuid4().hex}"


def _as_chat(body: ResponseBody) -> ChatBody:
    """The same wish in the words of chat completions."""
    given = {name: getattr(body, name) for name in body.model_fields_set & ChatBody.model_fields.keys()}
    if body.n != 1:
        raise invalid("n", f"n: a response has one answer, and {body.n} are wanted")
    messages: list[base.Message] = body.input
    if body.instructions is not None:
        if messages[0].role == "system":
            why = "instructions: item 0 of the input is the system's too: say in one of them what it says"
            raise invalid("instructions", why)
        messages = [base.Message("system", body.instructions), *messages]
    given["messages"] = messages
    if "max_output_tokens" in body.model_fields_set:
        given["max_tokens"] = body.max_output_tokens
    if LOG_PROBS in body.include:
        given["logprobs"] = True
    if body.truncation == "auto":
        given["truncate"] = True
    if "format" in body.text.model_fields_set:
        given["response_format"] = _format(body)
    return ChatBody.model_construct(**given)


def _format(body: ResponseBody) -> Format:
    shape = body.text.format
    if shape.type != "json_schema":
        return Format(type=shape.type)
    if shape.schema_ is None:
        raise invalid("text", "text.format: schema is missing")
    return Format(type=shape.type, json_schema=Described(schema=shape.schema_))


@contextmanager
def _in_other_words(body: ResponseBody) -> Iterator[None]:
    """Refusals name the fields of this route, and items by the numbers that they came with."""
    items = ["instructions"] * (body.instructions is not None) + [
        f"item {number}" for number in body.input.begins
    ]
    words = OTHERWISE | {f"message {i}": item for i, item in enumerate(items)}
    try:
        yield
    except Refusal as refusal:
        # quoted names, as those of tools, are the client's
        told = re.compile(rf"(?<!['\"])\b({'|'.join(map(re.escape, words))})\b")
        refusal.message = told.sub(lambda found: words[found[1]], refusal.message)
        refusal.param = PARAMS.get(refusal.param or "", refusal.param)
        raise
