"""Base of the chat formats of this package: each is the Jinja template of its name in ``templates/``.

The same template renders conversations here and is exported with a run. It is trusted, so unlike that of a
checkpoint it needs no process of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from polyhead.chat.base import EOS, ChatPiece, Message, PieceKind, check_messages, merge_system
from polyhead.chat.sandbox.placeholders import Placeholders, choose_placeholders
from polyhead.chat.tools import ToolChoice

if TYPE_CHECKING:
    from jinja2 import Template

_GENERATION_TAG = re.compile(r"{%- (end)?generation %}")  # around answers, with their end tokens
_EDGE_CHARS = "<["  # every special token of these templates starts with one
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class CallStyle(NamedTuple):
    """The fields of an assistant message with tool calls that a template expects."""

    arguments_as_text: bool = False  # JSON in a string, else an object
    null_content: bool = False  # a message without text has the content None, else ""


def to_fields(message: Message, style: CallStyle, call_names: Mapping[str, str]) -> dict[str, Any]:
    """A message as templates expect it; ``call_names`` are the functions of earlier calls by id."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["content"] = message.content or (None if style.null_content else "")
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if style.arguments_as_text else json.loads(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        name = call_names.get(message.tool_call_id)
        fields |= {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
        fields |= {"name": name} if name else {}
    return fields


class TemplateFormat:
    """A chat format that a template of this package writes."""

    name: ClassVar[str]
    tokens: ClassVar[tuple[str, ...]] = ()  # special tokens, which the vocabulary must have
    marks: ClassVar[tuple[str, ...]] = ()  # special tokens if the vocabulary has them, else plain text
    must_alternate: ClassVar[bool] = False  # user and assistant take turns
    merges_system: ClassVar[bool] = False  # there is a place for one system message only, the first
    end_tokens: tuple[ChatPiece, ...] = (EOS,)
    trim_content = False
    variables: Mapping[str, str | bool | None] = MappingProxyType({})  # of the template: options

    @property
    def template(self) -> str:
        """The template with its variables, for transformers' apply_chat_template and other programs.

        It has no ``generation`` tags, which not all programs know.
        """
        lines = (f"{{%- set {name} = {_to_literal(value)} %}}" for name, value in self.variables.items())
        return "\n".join([*lines, _GENERATION_TAG.sub("", _read_template(self.name))])

    def check_support(self, messages: Sequence[Message], tools: ToolChoice) -> None:
        """Raise UserError for a conversation that the template does not support."""

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool, tools: ToolChoice = ToolChoice()
    ) -> list[ChatPiece]:
        """Render the conversation as pieces."""
        alternating_format = self.name if self.must_alternate else ""
        check_messages(messages, add_generation_prompt, alternating_format, hasattr(self, "tool_syntax"))
        self.check_support(messages, tools)
        messages = merge_system(messages) if self.merges_system else messages
        values = {
            **self.variables,
            "messages": [to_fields(message, CallStyle(arguments_as_text=True), {}) for message in messages],
            "tools": [tool.definition for tool in tools.all_tools],
            "add_generation_prompt": add_generation_prompt,
        }
        placeholders = choose_placeholders(values, edge_chars=_EDGE_CHARS)
        template = _compile_template(self.name, placeholders.block)
        return self._split_pieces(template.render(placeholders.protect(values)), placeholders)

    def _split_pieces(self, text: str, placeholders: Placeholders) -> list[ChatPiece]:
        """Split a rendered text at the special tokens that the template wrote and at the ends of answers."""
        kinds: dict[str, tuple[str, PieceKind]] = {token: (token, "token") for token in self.tokens}
        kinds |= {mark: (mark, "mark") for mark in self.marks}
        kinds |= {character: (role, "role") for role, character in placeholders.roles.items()}
        bounds = {placeholders.answer_start: True, placeholders.answer_end: False}
        pieces, is_assistant = list[ChatPiece](), False
        for part in re.split(f"({'|'.join(map(re.escape, [*kinds, *bounds]))})", text):
            if part in bounds:
                is_assistant = bounds[part]
            elif part in kinds:
                pieces.append(ChatPiece(*kinds[part], is_assistant))
            elif part:
                pieces.append(ChatPiece(placeholders.restore(part), "text", is_assistant))
        return pieces


@cache
def _read_template(name: str) -> str:
    return Path(__file__).with_name("templates").joinpath(f"{name}.jinja").read_text(encoding="utf-8").strip()


@lru_cache(64)
def _compile_template(name: str, block: int) -> Template:
    """A template that writes the special tokens of roles and the bounds of answers as placeholders."""
    from polyhead.chat.sandbox.environment import TemplateEnvironment  # imports jinja2

    environment = TemplateEnvironment()
    environment.placeholders = placeholders = Placeholders(block, _EDGE_CHARS)
    # conversations are checked before; a system message is written that the published template refuses
    environment.globals |= placeholders.roles | {"raise_exception": lambda message: ""}
    bounds = {None: placeholders.answer_start, "end": placeholders.answer_end}
    return environment.from_string(
        _GENERATION_TAG.sub(lambda tag: f"{{{{- '{bounds[tag[1]]}' }}}}", _read_template(name))
    )


def _to_literal(value: str | bool | None) -> str:
    """A value as Jinja writes it."""
    if isinstance(value, str):
        return "'" + "".join(_ESCAPES.get(c, c) for c in value) + "'"
    return json.dumps(value).replace("null", "none")
