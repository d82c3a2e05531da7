"""Chat formats of Llama 2 and Llama 3."""

from __future__ import annotations

import json
from collections.abc import Sequence

from polyhead.chat.base import (
    BOS,
    EOS,
    ChatPiece,
    Message,
    assistant_piece,
    check_messages,
    merge_system,
    special_piece,
    split_system,
)
from polyhead.chat.jinja import CHECK_ALTERNATION, SPLIT_SYSTEM, quote
from polyhead.chat.tool_calls import ToolCallSyntax
from polyhead.chat.tools import ToolChoice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT

_HEADER_START, _HEADER_END, _TURN_END = "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
ENVIRONMENT = "Environment: ipython\n"
_TOOLS_HEADER = (
    "Given the following functions, please respond with a JSON for a function call with its proper "
    "arguments that best "
    'answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of '
    "argument "
    "name and its value}.Do not use variables.\n\n"
)


@CHAT.register("llama2")
class Llama2:
    """User messages between ``[INST]`` and ``[/INST]`` (plain text), the system message in the first one.

    Equation: <s>[INST] <<SYS>>\\nsystem\\n<</SYS>>\\n\\nquestion [/INST] answer </s>
    Paper: Touvron et al., 2023
    When: Llama 2 and models derived from it
    """

    end_tokens = (EOS,)
    trim_content = True

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[ChatPiece]:
        """The conversation in pieces."""
        check_messages(messages, add_generation_prompt, "llama2")
        system, turns = split_system(merge_system(messages))
        pieces: list[ChatPiece] = []
        for i, (role, content, *_) in enumerate(turns):
            if role == "assistant":
                pieces += [assistant_piece(f" {content.strip()} "), EOS._replace(is_assistant=True)]
                continue
            if i == 0 and system is not None:
                content = f"<<SYS>>\n{system}\n<</SYS>>\n\n{content}"
            pieces += [BOS, ChatPiece(f"[INST] {content.strip()} [/INST]")]
        return pieces

    @property
    def template(self) -> str:
        return (
            SPLIT_SYSTEM
            + "{% for message in turns %}"
            + CHECK_ALTERNATION
            + "{% if loop.first and system is not none %}"
            "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
            "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
            "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %}"
            "{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
        )


@CHAT.register("llama3")
class Llama3:
    """Each message under a header with its role, up to ``<|eot_id|>``.

    Tool definitions come before the first user message, as in Llama 3.1; an answer is either one tool call or
    text.

    Equation: <|begin_of_text|>  <|start_header_id|>role<|end_header_id|>\\n\\ncontent<|eot_id|> ...
    Paper: Grattafiori et al., 2024
    When: Llama 3, 3.1, 3.2 and models derived from them
    Options:
      header: text at the start of the system message, which is then always written; Llama 3.1 expects dates
        there
    """

    end_tokens = (
        special_piece(_TURN_END),
        ChatPiece("<|eom_id|>", "mark"),
        EOS,
    )  # the second ends some calls
    trim_content = True
    tool_syntax = ToolCallSyntax(arguments_key="parameters", parallel_tool_calls=False)

    def __init__(self, *, header: str = "") -> None:
        self.header = header

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool, tools: ToolChoice = ToolChoice()
    ) -> list[ChatPiece]:
        """The conversation in pieces."""
        check_messages(messages, add_generation_prompt, allow_tool_calls=True)
        header = f"{ENVIRONMENT if tools.all_tools else ''}{self.header}"
        system, turns = split_system(messages)
        pieces = [BOS]
        if header or system is not None:
            pieces += _render_turn("system", ChatPiece(header + (system or "").strip()))
        first = next(i for i, message in enumerate(turns) if message.role != "system")
        if tools.all_tools and turns[first].role != "user":
            raise UserError(
                "this chat format writes tools into the first message, which must have the role 'user'"
            )
        definitions = "".join(
            f"{json.dumps(tool.definition, ensure_ascii=False, indent=4)}\n\n" for tool in tools.all_tools
        )
        for i, message in enumerate(turns):
            head, text = (
                _TOOLS_HEADER + definitions if definitions and i == first else "",
                self._turn_text(message),
            )
            role = "ipython" if message.role == "tool" else message.role
            pieces += _render_turn(role, ChatPiece(head + text, is_assistant=role == "assistant"))
        return (
            [
                *pieces,
                special_piece(_HEADER_START),
                ChatPiece("assistant"),
                special_piece(_HEADER_END),
                ChatPiece("\n\n"),
            ]
            if add_generation_prompt
            else pieces
        )

    def _turn_text(self, message: Message) -> str:
        """Text of a turn: a tool result as JSON, a tool call without other text, or the content."""
        if message.role == "tool":
            return json.dumps(message.content, ensure_ascii=False)
        if len(message.tool_calls) > 1:
            raise UserError(
                f"this chat format supports one call per message; a message has {len(message.tool_calls)}"
            )
        return (
            self.tool_syntax.format_call(message.tool_calls[0])
            if message.tool_calls
            else message.content.strip()
        )

    @property
    def template(self) -> str:
        opening = quote(f"{_HEADER_START}assistant{_HEADER_END}\n\n")
        template = (
            SPLIT_SYSTEM
            + "{{ bos_token }}{% if "
            + ("true" if self.header else "tools or system is not none")
            + " %}{{ "
        )
        template += (
            quote(f"{_HEADER_START}system{_HEADER_END}\n\n")
            + " + ("
            + quote(ENVIRONMENT)
            + " if tools else '') + "
        )
        template += quote(self.header) + " + ((system or '') | trim) + '<|eot_id|>' }}{% endif %}"
        return template + _TURNS + "{% if add_generation_prompt %}{{ " + opening + " }}{% endif %}"


def _render_turn(role: str, content: ChatPiece) -> list[ChatPiece]:
    return [
        special_piece(_HEADER_START),
        ChatPiece(role),
        special_piece(_HEADER_END),
        ChatPiece("\n\n"),
        content,
        special_piece(_TURN_END, content.is_assistant),
    ]


_TURNS = (
    "{% set ns = namespace(shown=false) %}{% for message in turns %}{% set role = message['role'] %}"
    "{% set content = (message['content'] or '') | trim %}{% if role == 'tool' %}"
    "{% set role = 'ipython' %}{% set content = (message['content'] or '') | tojson %}"
    "{% elif message['tool_calls'] %}{% if message['tool_calls'] | length > 1 %}{{ "
    "raise_exception('one call at once') }}{% endif %}{% set call = message['tool_calls'][0]['function'] "
    "%}{% set given = call['arguments'] if call['arguments'] is string else call['arguments'] | tojson "
    "%}{% set content = '{\"name\": \"' + call['name'] + '\", \"parameters\": ' + given + '}' %}{% endif "
    "%}{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}"
    "{% if tools and role != 'system' and not ns.shown %}{% set ns.shown = true %}{{ "
    + quote(_TOOLS_HEADER)
    + " }}{% for tool in tools %}{{ (tool | tojson(indent=4)) + '\\n\\n' }}{% endfor %}{% endif %}"
    "{{ content + '<|eot_id|>' }}{% endfor %}"
)
