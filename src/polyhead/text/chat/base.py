"""Messages, the pieces of text that a format makes of them, and the orders of roles that formats allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from polyhead.errors import UserError, nearest, show

ROLES = ("system", "user", "assistant")
Kind = Literal["text", "token", "mark", "role"]


class Message(NamedTuple):
    """What somebody says in a conversation."""

    role: str  # system, user or assistant
    content: str


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


def check(messages: Sequence[Message], answer: bool, alternate: str = "") -> None:
    """Refuse an order of roles that makes no sense; ``alternate`` names a format in which user and assistant take turns."""
    for number, message in enumerate(messages):
        if message.role not in ROLES:
            hint = nearest(message.role, ROLES)
            raise UserError(
                f"message {number} has the role {show(message.role)}, wanted {', '.join(ROLES)}{hint}"
            )
        if message.role == "system" and number:
            raise UserError(f"message {number} is the system's, which speaks first or not at all")
    turns = apart(messages)[1]
    if not turns:
        raise UserError("a conversation needs a message of the user")
    if answer and turns[-1].role != "user":
        raise UserError("the last message is the assistant's; a message of the user must come last")
    for number, message in enumerate(turns if alternate else ()):
        if (message.role == "user") != (number % 2 == 0):
            raise UserError(
                f"in the format {alternate!r} user and assistant take turns, the user first; "
                f"message {number + len(messages) - len(turns)} is the {message.role}'s"
            )
