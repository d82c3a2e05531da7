"""ChatML: every message between two special tokens, with the name of its role."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from polyhead.registry import CHAT
from polyhead.text.chat.base import BOS, EOS, Message, Piece, apart, check, token
from polyhead.text.chat.calls import Calls
from polyhead.text.chat.jinja import quoted
from polyhead.text.chat.tools import Tools

OPEN, CLOSE = "<|im_start|>", "<|im_end|>"
THOUGHT, DONE = "<think>\n", "\n</think>\n\n"
RESULT, RESULTED = "<tool_response>", "</tool_response>"
TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
HOW = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
MARKS = re.compile("(</?tools>|</?tool_call>|</?tool_response>)")


@CHAT.register("chatml")
class ChatML:
    """Every message between ``<|im_start|>`` and ``<|im_end|>``: Qwen, SmolLM and many others.

    With ``thinks`` an answer of before the last question is written without what stands before ``</think>`` in it, and
    one after that question with its thoughts, empty ones if it has none. Tools stand behind what the system says, calls
    between ``<tool_call>`` and ``</tool_call>``, and their results in a turn of the user, as of Qwen 2.5 and 3.

    Equation: <|im_start|>role\\ncontent<|im_end|>\\n ...  <|im_start|>assistant\\n
    Paper: OpenAI, 2023; Bai et al., 2023
    When: the vocabulary has these tokens
    Options:
      system: what the system says where no message of it comes first
      bos: whether the begin-of-text token comes first
      thinks: whether the model thinks aloud before it answers, as Qwen 3
    """

    ends = (token(CLOSE), EOS)
    trims = False
    calls = Calls("<tool_call>\n", "\n</tool_call>", "\n")

    def __init__(self, *, system: str = "", bos: bool = False, thinks: bool = False) -> None:
        self.system, self.bos, self.thinks = system, bos, thinks

    def write(self, messages: Sequence[Message], answer: bool, tools: Tools = Tools()) -> list[Piece]:
        """The conversation in pieces."""
        check(messages, answer, calls=True)
        system, turns = apart(messages)
        system = self.system or None if system is None else system
        pieces = [BOS] if self.bos else []
        if tools.all:
            given = "".join(f"\n{json.dumps(tool.given, ensure_ascii=False)}" for tool in tools.all)
            head = [] if system is None else [Piece(f"{system}\n\n")]
            pieces += [token(OPEN), Piece("system\n"), *head, *_marked(TOOLS), Piece(given), *_marked(HOW)]
            pieces += [token(CLOSE), Piece("\n")]
        elif system is not None:
            pieces += [token(OPEN), Piece("system\n"), Piece(system), token(CLOSE), Piece("\n")]
        asked = [i for i, one in enumerate(turns) if one.role == "user" and not _result(one.content)]
        last = max(asked, default=len(turns) - 1)
        for i, message in enumerate(turns):
            if message.role == "tool":
                pieces += self._result(turns, i)
                continue
            own = message.role == "assistant"
            pieces += [token(OPEN), Piece(f"{message.role}\n")]
            pieces += self._said(message, i > last, i == len(turns) - 1) if own else [Piece(message.content)]
            pieces += [token(CLOSE, own), Piece("\n")]
        return [*pieces, token(OPEN), Piece("assistant\n")] if answer else pieces

    def _said(self, message: Message, recent: bool, last: bool) -> list[Piece]:
        """An answer and its calls, each in a line of its own."""
        told, content = (
            _told(message.content, recent, last) if self.thinks else (message.content, message.content)
        )
        pieces = [Piece(told, learned=True)]
        for number, call in enumerate(message.calls):
            before = self.calls.between if number or content else ""
            body = f"{before}{self.calls.open}", self.calls.said(call), self.calls.close
            pieces += [*_marked(body[0], True), Piece(body[1], learned=True), *_marked(body[2], True)]
        return pieces

    def _result(self, turns: Sequence[Message], i: int) -> list[Piece]:
        """What a function gave back; those that come together stand in one turn of the user."""
        first = i == 0 or turns[i - 1].role != "tool"
        last = i == len(turns) - 1 or turns[i + 1].role != "tool"
        pieces = [token(OPEN), Piece("user")] if first else []
        pieces += [*_marked(f"\n{RESULT}\n"), Piece(turns[i].content), *_marked(f"\n{RESULTED}")]
        return [*pieces, token(CLOSE), Piece("\n")] if last else pieces

    @property
    def template(self) -> str:
        own = quoted(self.system + "\n\n") if self.system else "''"
        head = "{% elif messages[0]['role'] == 'system' %}{{ '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
        if self.system:
            head += "{% else %}{{ " + quoted(f"{OPEN}system\n{self.system}{CLOSE}\n") + " }}"
        return (
            ("{{ bos_token }}" if self.bos else "")
            + "{% if tools %}{{ '<|im_start|>system\\n' + (messages[0]['content'] + '\\n\\n' if messages[0]['role'] == 'system' else "
            + own + ") + " + quoted(TOOLS) + " }}{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}{{ "
            + quoted(f"{HOW}{CLOSE}\n") + " }}" + head + "{% endif %}"
            + (_LAST if self.thinks else "")
            + _TURNS.replace("THOUGHTS", _THINKING if self.thinks else "{% set told = content %}")
            + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
        )  # fmt: skip


def _marked(text: str, learned: bool = False) -> list[Piece]:
    """Words of the format, with its marks, which are special tokens in some vocabularies."""
    parts = MARKS.split(text)
    return [Piece(part, "mark" if i % 2 else "text", learned) for i, part in enumerate(parts) if part]


def _result(content: str) -> bool:
    """Whether a message of the user is written as a function's result is."""
    return content.startswith(RESULT) and content.endswith(RESULTED)


def _told(content: str, recent: bool, last: bool) -> tuple[str, str]:
    """An answer as a model that thinks reads it again, and what of it is no thought."""
    thought, sep, _ = content.partition("</think>")
    if sep:
        content = content.rpartition("</think>")[2].lstrip("\n")
        thought = thought.rstrip("\n").rpartition("<think>")[2].strip("\n")
    else:
        thought = ""
    if recent and (last or thought):
        return THOUGHT + thought + DONE + content.lstrip("\n"), content
    return content, content


_LAST = (
    "{% set ns = namespace(last=messages | length - 1, found=false) %}{% for message in messages[::-1] %}"
    "{% set content = message['content'] or '' %}{% if not ns.found and message['role'] == 'user' and not "
    "(content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}"
    "{% set ns.last = messages | length - 1 - loop.index0 %}{% set ns.found = true %}{% endif %}{% endfor %}"
)
_TURNS = (
    "{% for message in messages %}{% set content = message['content'] or '' %}{% if message['role'] == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% elif message['role'] == 'assistant' %}THOUGHTS{{ '<|im_start|>assistant\\n' + told }}"
    "{% for call in message['tool_calls'] or [] %}{% set call = call['function'] %}"
    "{{ ('' if loop.first and not content else '\\n') + '<tool_call>\\n{\"name\": \"' + call['name'] + '\", \"arguments\": ' }}"
    "{{ (call['arguments'] if call['arguments'] is string else call['arguments'] | tojson) + '}\\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% elif not (loop.first and message['role'] == 'system') %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
)
_THINKING = (
    "{% set thought = '' %}{% if '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].strip('\\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}{% set told = content %}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "{% set told = '<think>\\n' + thought + '\\n</think>\\n\\n' + content.lstrip('\\n') %}{% endif %}"
)
