"""A language model that converses: messages in, an answer out, as it comes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from polyhead.errors import UserError, nearest, show
from polyhead.generate.service import Asked, Stream, TextEngine
from polyhead.registry import CHAT, Choice
from polyhead.text.chat.base import ChatFormat, Message, apart
from polyhead.text.chat.tokens import check_fits, ends, written

KEYS = ("role", "content")


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

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens after which the model answers."""
        return written(self.format, self.engine.tokenizer, messages, answer=True).ids

    def fitting(self, messages: Sequence[Message], room: int) -> list[Message]:
        """The messages without the oldest questions and answers, where all do not fit into so many tokens.

        What the system says stays. A UserError says that the last question alone is too long.
        """
        system, turns = apart(messages)
        head = [] if system is None else [Message("system", system)]
        starts = [0, *(i for i in range(1, len(turns)) if turns[i].role == "user")]

        def size(start: int) -> int:
            return len(self.prompt([*head, *turns[start:]]))

        if size(0) <= room:
            return list(messages)
        first = bisect_left(starts, True, lo=1, key=lambda start: size(start) <= room)
        if first == len(starts):
            raise UserError(
                f"the conversation has {size(starts[-1])} tokens and room for {max(room, 0)}: say less at once"
            )
        return [*head, *turns[starts[first] :]]

    def kept(self, messages: Sequence[Message], wishes: Mapping[str, Any]) -> list[Message]:
        """The messages that are read: as many as leave the answer all its room, but at most half of what the model reads."""
        whole = self.engine.max_len
        most = wishes.get("max_new_tokens", self.engine.config.max_new_tokens)
        return self.fitting(messages, whole + 1 - min(most, whole // 2) if isinstance(most, int) else whole)

    def read(self, messages: Sequence[Message], **wishes: Any) -> Asked:
        """A wish for an answer, checked; ``wishes`` are those of ``TextEngine.read``.

        Of a conversation that is too long the oldest questions go, as ``kept`` says.
        """
        ids = self.prompt(self.kept(messages, wishes))
        return self.engine.read(ids, ends=self.ends, trim=self.format.trims, **wishes)

    def answer(self, messages: Sequence[Message], **wishes: Any) -> Iterator[str]:
        """What the assistant says, piece by piece; who stops listening ends it."""
        stream: Stream = self.engine.begin(self.read(messages, **wishes))
        try:
            for said in stream:
                yield said.text
        finally:
            stream.cancel()


def conversation(given: Iterable[Any]) -> list[Message]:
    """Messages from what a program or a file says: mappings of role and content."""
    if isinstance(given, str | Mapping):
        raise UserError('a conversation is a list of messages: [{"role": "user", "content": "..."}]')
    return [message(one, number) for number, one in enumerate(given)]


def message(given: Any, number: int) -> Message:
    """One of them."""
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping):
        raise UserError(f"message {number} is {show(given)}, wanted a role and a content")
    for key in KEYS:
        if not isinstance(given.get(key), str):
            raise UserError(f"message {number} has no text as its {key}: {show(given.get(key))}")
    for key in given:
        if key not in KEYS:
            raise UserError(f"message {number} has {show(key)}, which is not known{nearest(str(key), KEYS)}")
    return Message(given["role"], given["content"])
