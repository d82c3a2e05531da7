"""A language model that converses: messages in, an answer out, as it comes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from polyhead.errors import UserError, nearest, show
from polyhead.generate.outcome import Stream
from polyhead.generate.service import Asked, TextEngine
from polyhead.registry import CHAT, Choice
from polyhead.text.chat.base import ChatFormat, Message, apart
from polyhead.text.chat.calls import CallingFormat, Calls
from polyhead.text.chat.tokens import check_fits, ends, pieces, speaker, written
from polyhead.text.chat.tools import Tools, calls_of, tools_of

KEYS = ("role", "content", "tool_calls", "tool_call_id")  # of a Message, as programs name them


class Chat:
    """An engine, and the format in which its model knows conversations."""

    def __init__(self, engine: TextEngine, choice: Choice | None) -> None:
        if choice is None:
            raise UserError(
                "nothing says how this run writes conversations, or it does so as no format here; "
                f"if you know how, name it with --chat or chat=: {', '.join(CHAT.names())}"
            )
        self.engine, self.choice = engine, CHAT.check(choice)
        self.format: ChatFormat = CHAT.build(self.choice)
        check_fits(self.format, engine.tokenizer)
        self.ends = ends(self.format, engine.tokenizer)
        self.calls: Calls | None = self.format.calls if isinstance(self.format, CallingFormat) else None
        self.speaker = speaker(self.format, engine.tokenizer)

    def prompt(self, messages: Sequence[Message], tools: Tools = Tools()) -> list[int]:
        """The tokens after which the model answers."""
        return written(self.format, self.engine.tokenizer, messages, answer=True, tools=tools).ids

    def length(self, tools: Tools) -> int:
        """Characters of a conversation in which ``tools`` are described, and nothing is said."""
        return sum(len(piece.text) for piece in pieces(self.format, [Message("user", "")], True, tools))

    def fitting(self, messages: Sequence[Message], room: int, tools: Tools = Tools()) -> list[Message]:
        """The messages without the oldest questions and answers, where all do not fit into so many tokens.

        What the system says stays. A UserError says that the last question alone is too long.
        """
        system, turns = apart(messages)
        head = [] if system is None else [Message("system", system)]
        starts = [0, *(i for i in range(1, len(turns)) if turns[i].role == "user")]

        def size(start: int) -> int:
            return len(self.prompt([*head, *turns[start:]], tools))

        if size(0) <= room:
            return list(messages)
        first = bisect_left(starts, True, lo=1, key=lambda start: size(start) <= room)
        if first == len(starts):
            raise UserError(
                f"the conversation has {size(starts[-1])} tokens and room for {max(room, 0)}: say less at once"
            )
        return [*head, *turns[starts[first] :]]

    def kept(
        self, messages: Sequence[Message], wishes: Mapping[str, Any], tools: Tools = Tools()
    ) -> list[Message]:
        """The messages that are read: as many as leave the answer all its room, but at most half of what the model reads."""
        whole = self.engine.max_len
        most = wishes.get("max_new_tokens", self.engine.config.max_new_tokens)
        room = whole + 1 - min(most, whole // 2) if isinstance(most, int) else whole
        return self.fitting(messages, room, tools)

    def manner(self, tools: Tools = Tools()) -> dict[str, Any]:
        """Wishes for every answer: how it ends, and of one that may call tools how it is read, and its form if it must."""
        said: dict[str, Any] = {"turn_ends": self.ends, "trim": self.format.trims}
        if not tools.all or self.calls is None:  # a format that knows no tools has refused to write them
            return said
        return said | {"speaker": self.speaker} | ({"form": self.calls.form(tools)} if tools.must else {})

    def read(self, messages: Sequence[Message], tools: Tools = Tools(), **wishes: Any) -> Asked:
        """A wish for an answer, checked; ``wishes`` are those of ``TextEngine.read``.

        Of a conversation that is too long the oldest questions go, as ``kept`` says.
        """
        if tools.must and wishes.get("form") is not None:
            raise UserError(
                "an answer has one form: tool_choice asks for a call, and form for something else"
            )
        ids = self.prompt(self.kept(messages, wishes, tools), tools)
        try:
            return self.engine.read(ids, **(wishes | self.manner(tools)))
        except UserError as error:
            if self.calls and tools.must and str(error).startswith("form "):
                raise UserError(self.calls.unfit(str(error), tools)) from None
            raise

    def answer(
        self, messages: Iterable[Any], *, tools: Any = None, tool_choice: Any = None, **wishes: Any
    ) -> Iterator[str]:
        """What the assistant says, piece by piece; who stops listening ends it."""
        return self._answer(conversation(messages), tools_of(tools, tool_choice), wishes)

    def reply(
        self, messages: Iterable[Any], *, tools: Any = None, tool_choice: Any = None, **wishes: Any
    ) -> Message:
        """What the assistant says as a message to go on from, with the functions that it calls."""
        offered = tools_of(tools, tool_choice)
        text = "".join(self._answer(conversation(messages), offered, wishes))
        if self.calls is None:
            return Message("assistant", text)
        content, calls = self.calls.reader(offered).feed(text, True)
        return Message("assistant", content, tuple(calls))

    def _answer(self, messages: Sequence[Message], tools: Tools, wishes: Mapping[str, Any]) -> Iterator[str]:
        if wishes.get("n", 1) != 1:
            raise UserError(
                f"n is {show(wishes['n'])}, and a chat has one answer; ask again with another seed"
            )
        stream: Stream = self.engine.begin(self.read(messages, tools, **wishes))
        try:
            for said in stream:
                yield said.text
        finally:
            stream.cancel()


def conversation(given: Iterable[Any]) -> list[Message]:
    """Messages from what a program or a file says: mappings of role and content."""
    if isinstance(given, str | Mapping | Message) or not isinstance(given, Iterable):
        raise UserError('a conversation is a list of messages: [{"role": "user", "content": "..."}]')
    return [message(one, number) for number, one in enumerate(given)]


def message(given: Any, number: int) -> Message:
    """One of them."""
    if isinstance(given, Message):
        given = dict(zip(KEYS, given, strict=True))
    if not isinstance(given, Mapping):
        raise UserError(f"message {number} is {show(given)}, wanted a role and a content")
    calls = calls_of(given.get("tool_calls"), number)
    content, answers = given.get("content"), given.get("tool_call_id")
    for key, value in (
        ("role", given.get("role")),
        ("content", "" if calls and content is None else content),
        ("tool_call_id", "" if answers is None else answers),
    ):
        if not isinstance(value, str):
            raise UserError(f"message {number} has no text as its {key}: {show(value)}")
    for key in given:
        if key not in KEYS:
            raise UserError(f"message {number} has {show(key)}, which is not known{nearest(str(key), KEYS)}")
    return Message(given["role"], content or "", calls, answers or "")
