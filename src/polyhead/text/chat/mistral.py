"""The formats of Mistral's instructed models, which differ in their blanks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from polyhead.errors import UserError, show
from polyhead.registry import CHAT
from polyhead.text.chat.base import BOS, EOS, Call, Message, Piece, apart, check, said
from polyhead.text.chat.calls import Calls
from polyhead.text.chat.jinja import APART, quoted
from polyhead.text.chat.tools import Tools


class Style(NamedTuple):
    """What stands about questions and answers."""

    before: str
    open: str  # between [INST] and the question
    close: str  # between the question and [/INST]
    answer: str  # before an answer
    tools: str | None = None  # behind a mark of tools; None where there are none


STYLES = {
    "first": Style("", " ", " ", ""),
    "v1": Style(" ", " ", " ", " "),
    "v3": Style("", " ", "", " ", " "),
    "tekken": Style("", "", "", "", ""),
}


@CHAT.register("mistral")
class Mistral:
    """Questions between ``[INST]`` and ``[/INST]``; what the system says stands before the first or the last of them.

    The marks are special tokens where the vocabulary has them, as since v3, and plain text before. Since v3 tools stand before
    the last question; an answer calls some of them or says something, and every call has an id of nine letters or digits.

    Equation: <s>[INST] question[/INST] answer</s>
    Paper: Jiang et al., 2023
    When: Mistral's instructed models and models made of them
    Options:
      style: first: Mistral 0.1, Mixtral; v1: Mistral 0.2 and the templates of 2024; v3: Mistral 0.3; tekken: Nemo
      system: the question that the system's message stands before: the first, the last, or none: it is refused
    """

    ends = (EOS,)
    trims = True
    calls = Calls(begin="[TOOL_CALLS][", between=", ", end="]")

    def __init__(
        self,
        *,
        style: Literal["first", "v1", "v3", "tekken"] = "v3",
        system: Literal["first", "last", "none"] = "last",
    ) -> None:
        self.style, self.system = style, system
        self.calls = self.calls._replace(begin=f"[TOOL_CALLS]{STYLES[style].tools or ''}[")

    def write(self, messages: Sequence[Message], answer: bool, tools: Tools = Tools()) -> list[Piece]:
        """The conversation in pieces."""
        check(messages, answer, "mistral", calls=True)
        style, (system, turns) = STYLES[self.style], apart(messages)
        if system is not None and self.system == "none":
            raise UserError("this chat format has no place for a message of the system")
        if style.tools is None and (tools.all or any(message.calls for message in turns)):
            raise UserError(
                f"the format 'mistral' has no way to write tools in the style {self.style!r}; v3 and tekken have"
            )
        last = max((i for i, message in enumerate(turns) if message.role == "user"), default=0)
        pieces = [BOS]
        for i, message in enumerate(turns):
            content = message.content
            if message.role == "tool":
                body = f'{style.tools}{{"content": {content}, "call_id": "{_id(message.answers)}"}}'
                pieces += [Piece("[TOOL_RESULTS]", "mark"), Piece(body), Piece("[/TOOL_RESULTS]", "mark")]
            elif message.calls:
                body = f"{style.tools}[{', '.join(map(self._called, message.calls))}]"
                pieces += [Piece("[TOOL_CALLS]", "mark", True), said(body), EOS._replace(learned=True)]
            elif message.role == "assistant":
                content = content.strip() if self.style == "v3" else content
                pieces += [said(style.answer + content), EOS._replace(learned=True)]
            else:
                if tools.all and i == last:
                    given = f"{style.tools}[{', '.join(_described(tool.given['function']) for tool in tools.all)}]"
                    pieces += [
                        Piece("[AVAILABLE_TOOLS]", "mark"),
                        Piece(given),
                        Piece("[/AVAILABLE_TOOLS]", "mark"),
                    ]
                if system is not None and i == (0 if self.system == "first" else last):
                    content = f"{system}\n\n{content}"
                pieces += [Piece(style.before)] if style.before else []
                pieces += [
                    Piece("[INST]", "mark"),
                    Piece(style.open + content + style.close),
                    Piece("[/INST]", "mark"),
                ]
        return pieces

    def _called(self, call: Call) -> str:
        return f'{self.calls.said(call)[:-1]}, "id": "{_id(call.id)}"}}'

    @property
    def template(self) -> str:
        style = STYLES[self.style]
        place = "0" if self.system == "first" else "ns.last"
        refuse = (
            "{{ raise_exception('no place for a message of the system') }}" if self.system == "none" else ""
        )
        trim = " | trim" if self.style == "v3" else ""
        offer, called = "", "{{ raise_exception('no way to write tools') }}"
        if style.tools is not None:
            offer, called = (
                one.replace("] [", f"]{style.tools}[").replace("] {", f"]{style.tools}{{")
                for one in (_OFFER, _CALLED)
            )
        return (
            APART + "{% if system is not none %}" + refuse + "{% endif %}" + _ORDER + "{{ bos_token }}"
            "{% for message in turns %}{% set content = message['content'] or '' %}"
            "{% if message['role'] == 'user' %}" + offer + "{% if system is not none and loop.index0 == " + place + " %}"
            "{% set content = system + '\\n\\n' + content %}{% endif %}{{ "
            + quoted(f"{style.before}[INST]{style.open}") + " + content + " + quoted(f"{style.close}[/INST]")
            + " }}{% elif message['tool_calls'] or message['role'] == 'tool' %}" + called
            + "{% else %}{{ " + quoted(style.answer) + " + (content" + trim + ") + eos_token }}{% endif %}{% endfor %}"
        )  # fmt: skip


def _described(function: dict[str, Any]) -> str:
    """A tool as these models read it: texts are not escaped."""
    parts = (
        f'"{key}": ' + (f'"{value}"' if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in function.items()
        if key != "return"
    )
    return f'{{"type": "function", "function": {{{", ".join(parts)}}}}}'


def _id(given: str) -> str:
    if not re.fullmatch("[A-Za-z0-9]{9}", given):
        raise UserError(
            f"the id {show(given)} of a call is not one of nine letters or digits, which the format 'mistral' wants"
        )
    return given


_ORDER = (
    "{% set ns = namespace(turn=0, last=0) %}{% for message in turns %}"
    "{% if message['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% if message['role'] != 'tool' and not message['tool_calls'] %}"
    "{% if (message['role'] == 'user') != (ns.turn % 2 == 0) %}"
    "{{ raise_exception('user and assistant must take turns, the user first') }}{% endif %}"
    "{% set ns.turn = ns.turn + 1 %}{% endif %}{% endfor %}"
)
_OFFER = (
    "{% if tools and loop.index0 == ns.last %}{{ '[AVAILABLE_TOOLS] [' }}{% for tool in tools %}"
    "{{ '{\"type\": \"function\", \"function\": {' }}{% for key, value in tool['function'].items() if key != 'return' %}"
    "{{ '\"' + key + '\": ' }}{% if value is string %}{{ '\"' + value + '\"' }}{% else %}{{ value | tojson }}{% endif %}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ '}}' if loop.last else '}}, ' }}{% endfor %}"
    "{{ '][/AVAILABLE_TOOLS]' }}{% endif %}"
)
_CALLED = (
    "{% if message['role'] == 'tool' %}{{ '[TOOL_RESULTS] {\"content\": ' + content + ', \"call_id\": \"' }}"
    "{{ message['tool_call_id'] + '\"}[/TOOL_RESULTS]' }}{% else %}{{ '[TOOL_CALLS] [' }}"
    "{% for call in message['tool_calls'] %}{% set given = call['function']['arguments'] %}"
    "{{ '{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ (given if given is string else given | tojson) + ', \"id\": \"' + call['id'] + '\"}' }}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' + eos_token }}{% endif %}"
)
