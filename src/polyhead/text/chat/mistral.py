"""The formats of Mistral's instructed models, which differ in their blanks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from polyhead.errors import UserError
from polyhead.registry import CHAT
from polyhead.text.chat.base import BOS, EOS, Message, Piece, apart, check, said
from polyhead.text.chat.jinja import ALTERNATE, APART, quoted


class Style(NamedTuple):
    """What stands about questions and answers."""

    before: str
    open: str  # between [INST] and the question
    close: str  # between the question and [/INST]
    answer: str  # before an answer


STYLES = {
    "first": Style("", " ", " ", ""),
    "v1": Style(" ", " ", " ", " "),
    "v3": Style("", " ", "", " "),
    "tekken": Style("", "", "", ""),
}


@CHAT.register("mistral")
class Mistral:
    """Questions between ``[INST]`` and ``[/INST]``; what the system says stands before the first or the last of them.

    The two marks are special tokens where the vocabulary has them, as since v3, and plain text before.

    Equation: <s>[INST] question[/INST] answer</s>
    Paper: Jiang et al., 2023
    When: Mistral's instructed models and models made of them
    Options:
      style: first: Mistral 0.1, Mixtral; v1: Mistral 0.2 and the templates of 2024; v3: Mistral 0.3; tekken: Nemo
      system: the question that the system's message stands before: the first, the last, or none: it is refused
    """

    ends = (EOS,)
    trims = True

    def __init__(
        self,
        *,
        style: Literal["first", "v1", "v3", "tekken"] = "v3",
        system: Literal["first", "last", "none"] = "last",
    ) -> None:
        self.style, self.system = style, system

    def write(self, messages: Sequence[Message], answer: bool) -> list[Piece]:
        """The conversation in pieces."""
        check(messages, answer, "mistral")
        style, (system, turns) = STYLES[self.style], apart(messages)
        if system is not None and self.system == "none":
            raise UserError("this chat format has no place for a message of the system")
        place = 0 if self.system == "first" else (len(turns) - 1) // 2 * 2
        pieces = [BOS]
        for i, (role, content, *_) in enumerate(turns):
            if role == "assistant":
                content = content.strip() if self.style == "v3" else content
                pieces += [said(style.answer + content), EOS._replace(learned=True)]
                continue
            if system is not None and i == place:
                content = f"{system}\n\n{content}"
            pieces += [Piece(style.before)] if style.before else []
            pieces += [
                Piece("[INST]", "mark"),
                Piece(style.open + content + style.close),
                Piece("[/INST]", "mark"),
            ]
        return pieces

    @property
    def template(self) -> str:
        style = STYLES[self.style]
        place = "0" if self.system == "first" else "(turns | length - 1) // 2 * 2"
        refuse = (
            "{{ raise_exception('no place for a message of the system') }}" if self.system == "none" else ""
        )
        trim = " | trim" if self.style == "v3" else ""
        return (
            APART + "{% if system is not none %}" + refuse + "{% endif %}{{ bos_token }}"
            "{% for message in turns %}" + ALTERNATE + "{% set content = message['content'] %}"
            "{% if message['role'] == 'user' %}{% if system is not none and loop.index0 == " + place + " %}"
            "{% set content = system + '\\n\\n' + content %}{% endif %}{{ "
            + quoted(f"{style.before}[INST]{style.open}") + " + content + " + quoted(f"{style.close}[/INST]")
            + " }}{% else %}{{ " + quoted(style.answer) + " + (content" + trim + ") + eos_token }}{% endif %}{% endfor %}"
        )  # fmt: skip
