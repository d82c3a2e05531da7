"""Messages, the pieces of text that a format makes of them, and the orders of roles that formats allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from polyhead.errors import UserError, nearest, show
from polyhead.registry import CHAT

ROLES = ("system", "user", "assistant", "tool")
Kind = Literal["text", "token", "mark", "role"]


class Call(NamedTuple):
    """A function that the assistant calls."""

    name: str
    arguments: str = "{}"  # an object, as JSON writes it
    id: str = ""


class Message(NamedTuple):
    """What somebody says in a conversation."""

    role: str  # system, user, assistant or tool
    content: str
    calls: tuple[Call, ...] = ()  # of the assistant
    answers: str = ""  # in a tool's message: the id of the call that it is the result of


class Piece(NamedTuple):
    """A part of a written conversation.

    A "token" is a special token of that name, a "role" the one that plays the role: "bos_token", which may be missing, or
    "eos_token". A "mark" is a special token where the vocabulary has one of that name, and plain text where it has not.
    """

    text: str
    kind: Kind = "text"
    learned: bool = False  # whether the assistant says it


class ChatFormat(Protocol):
    """A way to write conversations."""

    ends: tuple[Piece, ...]  # any of these tokens ends the assistant's turn
    trims: bool  # whether blanks about an answer belong to the format

    @property
    def template(self) -> str:
        """The same in Jinja, for transformers' apply_chat_template."""
        ...

    def write(self, messages: Sequence[Message], answer: bool) -> list[Piece]:
        """The conversation, with ``answer`` up to where the assistant begins to speak; a wrong order is a UserError."""
        ...


BOS, EOS = Piece("bos_token", "role"), Piece("eos_token", "role")


def token(name: str, learned: bool = False) -> Piece:
    """A special token that the vocabulary must have."""
    return Piece(name, "token", learned)


def said(content: str) -> Piece:
    """Words of the assistant."""
    return Piece(content, "text", True)


def apart(messages: Sequence[Message]) -> tuple[str | None, Sequence[Message]]:
    """What the system says at the beginning, if it does, and all other messages."""
    if messages and messages[0].role == "system":
        return messages[0].content, messages[1:]
    return None, messages


def check(messages: Sequence[Message], answer: bool, alternate: str = "", calls: bool = False) -> None:
    """Refuse an order of roles that makes no sense.

    ``alternate`` names a format in which user and assistant take turns; ``calls`` says whether one can write calls.
    """
    for number, message in enumerate(messages):
        if message.role not in ROLES:
            hint = nearest(message.role, ROLES)
            raise UserError(
                f"message {number} has the role {show(message.role)}, wanted {', '.join(ROLES)}{hint}"
            )
        if message.role == "system" and number:
            raise UserError(f"message {number} is the system's, which speaks first or not at all")
        if (message.role == "tool" or message.calls) and not calls:
            what = f"has the role {message.role!r}" if message.role == "tool" else "calls functions"
            raise toolless(f"message {number} {what}")
    turns = apart(messages)[1]
    if not turns:
        raise UserError("a conversation needs a message of the user")
    _check_calls(messages)
    if answer and turns[-1].role == "assistant":
        raise UserError("the last message is the assistant's; a message of the user must come last")
    spoken = [
        (i, one.role) for i, one in enumerate(messages) if one.role in ("user", "assistant") and not one.calls
    ]
    for turn, (number, role) in enumerate(spoken if alternate else ()):
        if (role == "user") != (turn % 2 == 0):
            raise UserError(
                f"in the format {alternate!r} user and assistant take turns, the user first; "
                f"message {number} is the {role}'s"
            )


def toolless(what: str) -> UserError:
    """Why something cannot be written in a format that knows no tools."""
    able = ", ".join(name for name in CHAT.names() if hasattr(CHAT.get(name), "calls"))
    return UserError(f"{what}, and this chat format has no way to write tools; those that have: {able}")


def _check_calls(messages: Sequence[Message]) -> None:
    """Refuse calls of others than the assistant, and results of what nobody has called."""
    called: list[str] = []
    for number, message in enumerate(messages):
        if message.calls and message.role != "assistant":
            raise UserError(
                f"message {number} is the {message.role}'s, and the assistant alone calls functions"
            )
        if message.role != "tool":
            called = [call.id for call in message.calls]
        elif not called:
            raise UserError(
                f"message {number} has the role 'tool', and no message before it calls a function"
            )
        elif message.answers and message.answers not in called:
            ids = ", ".join(map(show, called))
            raise UserError(
                f"message {number} answers the call {show(message.answers)}; the calls before it: {ids}"
            )
