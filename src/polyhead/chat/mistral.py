"""Chat formats of Mistral's instruct models, which differ in whitespace."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from polyhead.chat.base import (
    BOS,
    EOS,
    ChatPiece,
    Message,
    ToolCall,
    assistant_piece,
    check_messages,
    merge_system,
    split_system,
)
from polyhead.chat.jinja import SPLIT_SYSTEM, quote
from polyhead.chat.tool_calls import ToolCallSyntax
from polyhead.chat.tools import ToolChoice
from polyhead.core.errors import UserError, format_value
from polyhead.core.registry import CHAT


class MistralStyle(NamedTuple):
    """Whitespace around questions and answers."""

    inst_prefix: str
    question_prefix: str  # between [INST] and the question
    question_suffix: str  # between the question and [/INST]
    answer_prefix: str  # before an answer
    tools_prefix: str | None = None  # after a tool marker; None: no tools in this style


STYLES = {
    "first": MistralStyle("", " ", " ", ""),
    "v1": MistralStyle(" ", " ", " ", " "),
    "v3": MistralStyle("", " ", "", " ", " "),
    "tekken": MistralStyle("", "", "", "", ""),
}


@CHAT.register("mistral")
class Mistral:
    """User messages between ``[INST]`` and ``[/INST]``; the system message precedes the first or last one.

    The markers are special tokens if the vocabulary has them (since v3), else plain text. Since v3 tool
    definitions come before the last user message; an answer is either tool calls or text, and every call has
    an id of nine letters or digits.

    Equation: <s>[INST] question[/INST] answer</s>
    Paper: Jiang et al., 2023
    When: Mistral's instruct models and models derived from them
    Options:
      style: first: Mistral 0.1, Mixtral; v1: Mistral 0.2 and the templates of 2024; v3: Mistral 0.3; tekken:
        Nemo
      system: the user message that the system message precedes: first or last; none: the first, but the
        published template refuses a system message
    """

    end_tokens = (EOS,)
    trim_content = True
    tool_syntax = ToolCallSyntax(list_start="[TOOL_CALLS][", separator=", ", list_end="]")

    def __init__(
        self,
        *,
        style: Literal["first", "v1", "v3", "tekken"] = "v3",
        system: Literal["first", "last", "none"] = "last",
    ) -> None:
        self.style, self.system = style, system
        self.tool_syntax = self.tool_syntax._replace(
            list_start=f"[TOOL_CALLS]{STYLES[style].tools_prefix or ''}["
        )

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool, tools: ToolChoice = ToolChoice()
    ) -> list[ChatPiece]:
        """Render the conversation as pieces."""
        check_messages(messages, add_generation_prompt, "mistral", allow_tool_calls=True)
        style, (system, turns) = STYLES[self.style], split_system(merge_system(messages))
        if style.tools_prefix is None and (tools.all_tools or any(message.tool_calls for message in turns)):
            raise UserError(
                f"the format 'mistral' does not support tools in the style {self.style!r}; v3 and tekken do"
            )
        last = max((i for i, message in enumerate(turns) if message.role == "user"), default=0)
        pieces = [BOS]
        for i, message in enumerate(turns):
            content = message.content
            if message.role == "tool":
                body = (
                    f'{style.tools_prefix}{{"content": {content}, "call_id": '
                    f'"{_check_call_id(message.tool_call_id)}"}}'
                )
                pieces += [
                    ChatPiece("[TOOL_RESULTS]", "mark"),
                    ChatPiece(body),
                    ChatPiece("[/TOOL_RESULTS]", "mark"),
                ]
            elif message.tool_calls:
                body = f"{style.tools_prefix}[{', '.join(map(self._format_call, message.tool_calls))}]"
                pieces += [
                    ChatPiece("[TOOL_CALLS]", "mark", True),
                    assistant_piece(body),
                    EOS._replace(is_assistant=True),
                ]
            elif message.role == "assistant":
                content = content.strip() if self.style == "v3" else content
                pieces += [assistant_piece(style.answer_prefix + content), EOS._replace(is_assistant=True)]
            else:
                if tools.all_tools and i == last:
                    functions = [tool.definition["function"] for tool in tools.all_tools]
                    definitions = f"{style.tools_prefix}[{', '.join(map(_format_function, functions))}]"
                    pieces += [
                        ChatPiece("[AVAILABLE_TOOLS]", "mark"),
                        ChatPiece(definitions),
                        ChatPiece("[/AVAILABLE_TOOLS]", "mark"),
                    ]
                if system is not None and i == (last if self.system == "last" else 0):
                    content = f"{system}\n\n{content}"
                pieces += [ChatPiece(style.inst_prefix)] if style.inst_prefix else []
                pieces += [
                    ChatPiece("[INST]", "mark"),
                    ChatPiece(style.question_prefix + content + style.question_suffix),
                    ChatPiece("[/INST]", "mark"),
                ]
        return pieces

    def _format_call(self, call: ToolCall) -> str:
        return f'{self.tool_syntax.format_call(call)[:-1]}, "id": "{_check_call_id(call.id)}"}}'

    @property
    def template(self) -> str:
        style = STYLES[self.style]
        system_index = "0" if self.system == "first" else "ns.last"
        refuse = (
            "{{ raise_exception('no place for a message of the system') }}" if self.system == "none" else ""
        )
        trim = " | trim" if self.style == "v3" else ""
        tools_template, calls_template = "", "{{ raise_exception('no way to write tools') }}"
        if style.tools_prefix is not None:
            tools_template, calls_template = (
                part.replace("] [", f"]{style.tools_prefix}[").replace("] {", f"]{style.tools_prefix}{{")
                for part in (_TOOLS_TEMPLATE, _CALLS_TEMPLATE)
            )
        return (
            SPLIT_SYSTEM + "{% if system is not none %}" + refuse + "{% endif %}" + _CHECK_ORDER
            + "{{ bos_token }}"
            "{% for message in turns %}{% set content = message['content'] or '' %}"
            "{% if message['role'] == 'user' %}" + tools_template + "{% if system is not none and "
                "loop.index0 == " + system_index + " %}"
            "{% set content = system + '\\n\\n' + content %}{% endif %}{{ "
            + quote(f"{style.inst_prefix}[INST]{style.question_prefix}") + " + content + "
                + quote(f"{style.question_suffix}[/INST]")
            + " }}{% elif message['tool_calls'] or message['role'] == 'tool' %}" + calls_template
            + "{% else %}{{ " + quote(style.answer_prefix) + " + (content" + trim + ") + eos_token }}{% "
                "endif %}{% endfor %}"
        )  # fmt: skip


def _format_function(function: dict[str, Any]) -> str:
    """A tool definition in Mistral's format: strings are not escaped."""
    parts = (
        f'"{key}": ' + (f'"{value}"' if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in function.items()
        if key != "return"
    )
    return f'{{"type": "function", "function": {{{", ".join(parts)}}}}}'


def _check_call_id(call_id: str) -> str:
    if not re.fullmatch("[A-Za-z0-9]{9}", call_id):
        raise UserError(
            f"the id {format_value(call_id)} of a call must be nine letters or digits in the format 'mistral'"
        )
    return call_id


_CHECK_ORDER = (
    "{% set ns = namespace(turn=0, last=0) %}{% for message in turns %}"
    "{% if message['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% if message['role'] != 'tool' and not message['tool_calls'] %}"
    "{% if (message['role'] == 'user') != (ns.turn % 2 == 0) %}"
    "{{ raise_exception('user and assistant must take turns, the user first') }}{% endif %}"
    "{% set ns.turn = ns.turn + 1 %}{% endif %}{% endfor %}"
)
_TOOLS_TEMPLATE = (
    "{% if tools and loop.index0 == ns.last %}{{ '[AVAILABLE_TOOLS] [' }}{% for tool in tools %}"
    '{{ \'{"type": "function", "function": {\' }}{% for key, value in tool[\'function\'].items() if key '
    "!= 'return' %}{{ '\"' + key + '\": ' }}{% if value is string %}{{ '\"' + value + '\"' }}{% else %}{{ "
    "value | tojson }}{% endif %}{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ '}}' if "
    "loop.last else '}}, ' }}{% endfor %}{{ '][/AVAILABLE_TOOLS]' }}{% endif %}"
)
_CALLS_TEMPLATE = (
    "{% if message['role'] == 'tool' %}{{ '[TOOL_RESULTS] {\"content\": ' + content + ', \"call_id\": \"' }}"
    "{{ message['tool_call_id'] + '\"}[/TOOL_RESULTS]' }}{% else %}{{ '[TOOL_CALLS] [' }}"
    "{% for call in message['tool_calls'] %}{% set given = call['function']['arguments'] %}"
    "{{ '{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ (given if given is string else given | tojson) + ', \"id\": \"' + call['id'] + '\"}' }}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' + eos_token }}{% endif %}"
)
