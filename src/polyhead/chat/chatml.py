"""ChatML chat format: each message between two special tokens, with the name of its role."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from polyhead.chat.base import BOS, EOS, ChatPiece, Message, check_messages, special_piece, split_system
from polyhead.chat.jinja import quote
from polyhead.chat.reasoning import ReasoningSyntax
from polyhead.chat.tool_calls import ToolCallSyntax
from polyhead.chat.tools import ToolChoice
from polyhead.core.registry import CHAT

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
THINK_START, THINK_END = "<think>\n", "\n</think>\n\n"
TOOL_RESPONSE_START, TOOL_RESPONSE_END = "<tool_response>", "</tool_response>"
_TOOLS_HEADER = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_FOOTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
    "<args-json-object>}\n</tool_call>"
)
_MARKERS = re.compile("(</?tools>|</?tool_call>|</?tool_response>)")


@CHAT.register("chatml")
class ChatML:
    """Each message between ``<|im_start|>`` and ``<|im_end|>``: Qwen, SmolLM and many others.

    With ``thinks``, answers before the last user message are rendered without the reasoning before
    ``</think>``, and answers after it with their reasoning, an empty one if they have none. Tool definitions
    come after the system message, calls between ``<tool_call>`` and ``</tool_call>``, and tool results in a
    user turn, as in Qwen 2.5 and 3.

    Equation: <|im_start|>role\\ncontent<|im_end|>\\n ...  <|im_start|>assistant\\n
    Paper: OpenAI, 2023; Bai et al., 2023
    When: the vocabulary has these tokens
    Options:
      system: default system message, for conversations without one
      bos: whether BOS comes first
      thinks: whether the model writes reasoning before its answer, as Qwen 3
    """

    end_tokens = (special_piece(TURN_END), EOS)
    trim_content = False
    tool_syntax = ToolCallSyntax("<tool_call>\n", "\n</tool_call>", "\n")

    def __init__(self, *, system: str = "", bos: bool = False, thinks: bool = False) -> None:
        self.system, self.bos, self.thinks = system, bos, thinks
        self.reasoning = ReasoningSyntax() if thinks else None

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool, tools: ToolChoice = ToolChoice()
    ) -> list[ChatPiece]:
        """Render the conversation as pieces."""
        check_messages(messages, add_generation_prompt, allow_tool_calls=True)
        system, turns = split_system(messages)
        system = self.system or None if system is None else system
        pieces = [BOS] if self.bos else []
        if tools.all_tools:
            definitions = "".join(
                f"\n{json.dumps(tool.definition, ensure_ascii=False)}" for tool in tools.all_tools
            )
            head = [] if system is None else [ChatPiece(f"{system}\n\n")]
            pieces += [
                special_piece(TURN_START),
                ChatPiece("system\n"),
                *head,
                *_split_markers(_TOOLS_HEADER),
                ChatPiece(definitions),
                *_split_markers(_TOOLS_FOOTER),
            ]
            pieces += [special_piece(TURN_END), ChatPiece("\n")]
        elif system is not None:
            pieces += [
                special_piece(TURN_START),
                ChatPiece("system\n"),
                ChatPiece(system),
                special_piece(TURN_END),
                ChatPiece("\n"),
            ]
        question_indices = [
            i for i, turn in enumerate(turns) if turn.role == "user" and not _is_tool_result(turn.content)
        ]
        last = max(question_indices, default=len(turns) - 1)
        for i, message in enumerate(turns):
            if message.role == "tool":
                pieces += self._render_tool_result(turns, i)
                continue
            is_assistant = message.role == "assistant"
            pieces += [special_piece(TURN_START), ChatPiece(f"{message.role}\n")]
            pieces += (
                self._render_answer(message, i > last, i == len(turns) - 1)
                if is_assistant
                else [ChatPiece(message.content)]
            )
            pieces += [special_piece(TURN_END, is_assistant), ChatPiece("\n")]
        return (
            [*pieces, special_piece(TURN_START), ChatPiece("assistant\n")]
            if add_generation_prompt
            else pieces
        )

    def render_without_reasoning(self, messages: Sequence[Message], tools: ToolChoice) -> list[ChatPiece]:
        """Render the prompt for an answer, after empty reasoning if the model reasons."""
        return [
            *self.render(messages, True, tools),
            *(self.reasoning.empty_pieces() if self.reasoning else []),
        ]

    def _render_answer(self, message: Message, after_question: bool, is_last: bool) -> list[ChatPiece]:
        """Render an answer and its tool calls, each on its own line."""
        text, content = (
            _split_thoughts(message.content, after_question, is_last)
            if self.thinks
            else (message.content, message.content)
        )
        pieces = [ChatPiece(text, is_assistant=True)]
        for number, call in enumerate(message.tool_calls):
            separator = self.tool_syntax.separator if number or content else ""
            body = (
                f"{separator}{self.tool_syntax.call_start}",
                self.tool_syntax.format_call(call),
                self.tool_syntax.call_end,
            )
            pieces += [
                *_split_markers(body[0], True),
                ChatPiece(body[1], is_assistant=True),
                *_split_markers(body[2], True),
            ]
        return pieces

    def _render_tool_result(self, turns: Sequence[Message], i: int) -> list[ChatPiece]:
        """Render a tool result; consecutive results share one user turn."""
        is_first = i == 0 or turns[i - 1].role != "tool"
        is_last = i == len(turns) - 1 or turns[i + 1].role != "tool"
        pieces = [special_piece(TURN_START), ChatPiece("user")] if is_first else []
        pieces += [
            *_split_markers(f"\n{TOOL_RESPONSE_START}\n"),
            ChatPiece(turns[i].content),
            *_split_markers(f"\n{TOOL_RESPONSE_END}"),
        ]
        return [*pieces, special_piece(TURN_END), ChatPiece("\n")] if is_last else pieces

    @property
    def template(self) -> str:
        system_prefix = quote(self.system + "\n\n") if self.system else "''"
        head = (
            "{% elif messages[0]['role'] == 'system' %}{{ '<|im_start|>system\\n' + "
            "messages[0]['content'] + '<|im_end|>\\n' }}"
        )
        if self.system:
            head += "{% else %}{{ " + quote(f"{TURN_START}system\n{self.system}{TURN_END}\n") + " }}"
        return (
            ("{{ bos_token }}" if self.bos else "")
            + "{% if tools %}{{ '<|im_start|>system\\n' + (messages[0]['content'] + '\\n\\n' if "
              "messages[0]['role'] == 'system' else "
            + system_prefix + ") + " + quote(_TOOLS_HEADER) + " }}{% for tool in tools %}{{ '\\n' + (tool | "
                "tojson) }}{% endfor %}{{ "
            + quote(f"{_TOOLS_FOOTER}{TURN_END}\n") + " }}" + head + "{% endif %}"
            + (_LAST_QUESTION if self.thinks else "")
            + _TURNS.replace("THOUGHTS", _THINKING if self.thinks else "{% set answer = content %}")
            + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
        )  # fmt: skip


def _split_markers(text: str, is_assistant: bool = False) -> list[ChatPiece]:
    """Split a text of the format at its markers, which are special tokens in some vocabularies."""
    parts = _MARKERS.split(text)
    return [
        ChatPiece(part, "mark" if i % 2 else "text", is_assistant) for i, part in enumerate(parts) if part
    ]


def _is_tool_result(content: str) -> bool:
    """Whether a user message has the form of a tool result."""
    return content.startswith(TOOL_RESPONSE_START) and content.endswith(TOOL_RESPONSE_END)


def _split_thoughts(content: str, after_question: bool, is_last: bool) -> tuple[str, str]:
    """An answer as rendered for a reasoning model, and its content without reasoning."""
    thought, sep, _ = content.partition("</think>")
    if sep:
        content = content.rpartition("</think>")[2].lstrip("\n")
        thought = thought.rstrip("\n").rpartition("<think>")[2].strip("\n")
    else:
        thought = ""
    if after_question and (is_last or thought):
        return THINK_START + thought + THINK_END + content.lstrip("\n"), content
    return content, content


_LAST_QUESTION = (
    "{% set ns = namespace(last=messages | length - 1, found=false) %}{% for message in messages[::-1] %}"
    "{% set content = message['content'] or '' %}{% if not ns.found and message['role'] == 'user' and not "
    "(content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}"
    "{% set ns.last = messages | length - 1 - loop.index0 %}{% set ns.found = true %}{% endif %}{% endfor %}"
)
_TURNS = (
    "{% for message in messages %}{% set content = message['content'] or '' %}{% if message['role'] == "
    "'tool' %}{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}{{ '<|im_start|>user' }}{% "
    "endif %}{{ '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}{% if loop.last or "
    "messages[loop.index0 + 1]['role'] != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}{% elif message['role'] "
    "== 'assistant' %}THOUGHTS{{ '<|im_start|>assistant\\n' + answer }}{% for call in "
    "message['tool_calls'] or [] %}{% set call = call['function'] %}{{ ('' if loop.first and not content "
    "else '\\n') + '<tool_call>\\n{\"name\": \"' + call['name'] + '\", \"arguments\": ' }}{{ "
    "(call['arguments'] if call['arguments'] is string else call['arguments'] | tojson) + "
    "'}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% elif not (loop.first and message['role'] == "
    "'system') %}{{ '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}{% endif %}{% "
    "endfor %}"
)
_THINKING = (
    "{% set thought = '' %}{% if '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].strip('\\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}{% set answer = content %}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "{% set answer = '<think>\\n' + thought + '\\n</think>\\n\\n' + content.lstrip('\\n') %}{% endif %}"
)
