"""The format of Gemma."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from polyhead.errors import UserError
from polyhead.registry import CHAT
from polyhead.text.chat.base import BOS, EOS, Message, Piece, apart, check, token
from polyhead.text.chat.jinja import ALTERNATE, APART

OPEN, CLOSE = "<start_of_turn>", "<end_of_turn>"


@CHAT.register("gemma")
class Gemma:
    """Every message between ``<start_of_turn>`` and ``<end_of_turn>``; the assistant is called model.

    Equation: <bos>  <start_of_turn>user\\nquestion<end_of_turn>\\n<start_of_turn>model\\nanswer<end_of_turn>\\n
    Paper: Gemma Team, 2024
    When: Gemma and models made of it
    Options:
      system: where the system's message goes: first, before the first question as in Gemma 3, or none: it is refused
    """

    ends = (token(CLOSE), EOS)
    trims = True

    def __init__(self, *, system: Literal["first", "none"] = "first") -> None:
        self.system = system

    def write(self, messages: Sequence[Message], answer: bool) -> list[Piece]:
        """The conversation in pieces."""
        check(messages, answer, "gemma")
        system, turns = apart(messages)
        if system is not None and self.system == "none":
            raise UserError("this chat format has no place for a message of the system")
        pieces = [BOS]
        for i, (role, content, *_) in enumerate(turns):
            own = role == "assistant"
            before = f"{system}\n\n" if system is not None and i == 0 else ""
            pieces += [token(OPEN), Piece(("model" if own else role) + "\n" + before)]
            pieces += [Piece(content.strip(), learned=own), token(CLOSE, own), Piece("\n")]
        return [*pieces, token(OPEN), Piece("model\n")] if answer else pieces

    @property
    def template(self) -> str:
        refuse = (
            "{{ raise_exception('no place for a message of the system') }}" if self.system == "none" else ""
        )
        return (
            APART + "{% if system is not none %}" + refuse + "{% endif %}{{ bos_token }}"
            "{% for message in turns %}"
            + ALTERNATE
            + "{% set role = message['role'] | replace('assistant', 'model') %}"
            "{% set before = system + '\\n\\n' if loop.first and system is not none else '' %}"
            "{{ '<start_of_turn>' + role + '\\n' + before + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
        )
