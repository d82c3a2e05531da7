"""Detect the chat format of a template: a known one if it writes the same text, else the template itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path

from polyhead.chat.apply_template import render_chat
from polyhead.chat.base import ChatFormat, ChatPiece, Message, ToolCall, ToolChoice, build_tool_choice
from polyhead.chat.formats import STYLES
from polyhead.chat.jinja import JinjaChat
from polyhead.chat.sandbox.client import MAX_TEMPLATE_CHARS, TemplateError
from polyhead.core.atomic_io import read_regular_file
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.output_paths import did_you_mean_path
from polyhead.core.registry import CHAT

_OWN_TEMPLATE = re.compile(r"\{# polyhead: (.*?) #\}")
_BOS = "\0bos_token\0"  # as _join_pieces writes it
# default dates of Llama 3.1
_LLAMA3_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

_SYSTEM, _BLANK_SYSTEM = Message("system", "Be  brief.\n\n"), Message("system", "")
_QUESTION, _LAST_QUESTION = Message("user", " Is 2 < 3?\n"), Message("user", "é")
_FOLLOW_UP = Message("user", "And\t'so' \"on\"?")
_ANSWER, _BLANK_ANSWER = Message("assistant", "\n Yes. "), Message("assistant", "")
_REASONED_ANSWER = Message("assistant", "<think>\nlet me see\n</think>\n\nYes.")
_CALL = Message("assistant", "", (ToolCall("add_up", '{"a": 1, "b": "é <"}', "call00001"),))
_CALLS = Message("assistant", "I add.", (*_CALL.tool_calls, ToolCall("read_clock", "{}", "call00002")))
_RESULT = Message("tool", '{"sum": 3}', (), "call00001")
_OTHER_RESULT = Message("tool", " noon ", (), "call00002")
_CONVERSATIONS: tuple[tuple[Message, ...], ...] = (
    (_QUESTION,),
    (_SYSTEM, _QUESTION),
    (_BLANK_SYSTEM, _QUESTION),
    (_QUESTION, _ANSWER),
    (_QUESTION, _ANSWER, _FOLLOW_UP),
    (_SYSTEM, _QUESTION, _ANSWER, _FOLLOW_UP, _BLANK_ANSWER, _LAST_QUESTION),
    (_SYSTEM, _SYSTEM, _QUESTION),
    (_QUESTION, _ANSWER, _SYSTEM, _FOLLOW_UP),
    (_QUESTION, _FOLLOW_UP),
    (_QUESTION, _REASONED_ANSWER, _FOLLOW_UP),
    (_QUESTION, _ANSWER, _FOLLOW_UP, _REASONED_ANSWER),
    (_QUESTION, _CALL, _RESULT),
    (_QUESTION, _CALL, _RESULT, _ANSWER, _FOLLOW_UP),
    (_SYSTEM, _QUESTION, _CALLS, _RESULT, _OTHER_RESULT, _REASONED_ANSWER, _FOLLOW_UP),
)
_TOOLS = build_tool_choice(
    [
        {
            "type": "function",
            "function": {
                "name": "add_up",
                "description": "The sum of a & b.",
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "enum": ["é", "<"]}},
                    "required": ["a"],
                },
            },
        },
        {"type": "function", "function": {"name": "read_clock"}},
    ]
)


def build_template(choice: Choice) -> str:
    """The Jinja template of a format, with a comment from which ``detect_format`` restores the choice.

    The template of a checkpoint stays as it is.
    """
    if choice.name == "jinja":
        return str(CHAT.check(choice).options["template"])
    part: ChatFormat = CHAT.build(choice)
    config = choice.to_config()
    config_json = json.dumps({"name": config} if isinstance(config, str) else config)
    # "#}" would end the comment
    return "{# polyhead: " + config_json.replace("#}", "#\\u007d") + " #}" + part.template


def detect_format(template: str) -> Choice:
    """The chat format of a template: a known one if it writes the same text for all of a set of
    conversations, else ``jinja`` with the template. UserError if the template cannot be rendered.
    """
    if (own_choice := _read_comment(template)) and build_template(own_choice) == template:
        return own_choice
    part = JinjaChat(template=template)

    @cache
    def write(messages: tuple[Message, ...], tools: bool = False) -> str | None:
        """What the template writes for a conversation; None if it refuses it."""
        with suppress(TemplateError):
            return _join_pieces(part.render_exactly(messages, *_render_options(messages, tools)))
        return None

    question, refuses_system = write((_QUESTION,)) or "", write((_SYSTEM, _QUESTION)) is None
    candidates = [own_choice] if own_choice else []
    for choice in map(CHAT.check, candidates + _list_candidates(template, question, refuses_system)):
        if _writes_same(CHAT.build(choice), write):
            return choice
    return CHAT.check(Choice("jinja", template=template))


def read_template_file(path: Path) -> Choice:
    """The chat format of a template in a file."""
    if not path.exists():
        raise UserError(f"no file {str(path)!r}{did_you_mean_path(path)}")
    content = read_regular_file(path, max_bytes=4 * MAX_TEMPLATE_CHARS)
    try:
        return detect_format(content.decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _read_comment(template: str) -> Choice | None:
    """The format that the comment of ``build_template`` names; None if there is none."""
    comment = _OWN_TEMPLATE.match(template)
    try:
        choice = Choice.from_config(json.loads(comment[1])) if comment else None
        # a file must not name code to import, nor another template
        return CHAT.check(choice) if choice and choice.name in {*CHAT.names()} - {"jinja"} else None
    except (UserError, ValueError, RecursionError):
        return None


def _list_candidates(template: str, question: str, refuses_system: bool) -> list[Choice]:
    """The known formats, with the options that a template may have by what it writes for a question."""
    bos = question.startswith(_BOS)
    default = re.match(r"<\|im_start\|>system\n(.*?)<\|im_end\|>", question.removeprefix(_BOS), re.DOTALL)
    # a default system message that is computed, such as from the date, is none of the format
    system = default[1] if default and all(line in template for line in default[1].split("\n")) else ""
    places = ("none",) if refuses_system else ("first", "last")
    return [
        *(Choice("llama3", header=header) for header in ("", _LLAMA3_DATES)),
        *(Choice("chatml", system=system, bos=bos, thinks=thinks) for thinks in (False, True)),
        Choice("gemma", system=places[0]),
        Choice("llama2"),
        *(Choice("mistral", style=style, system=place) for style in STYLES for place in places),
        Choice("phi3", bos=bos),
        Choice("zephyr"),
        Choice("tulu", bos=bos),
    ]


def _render_options(messages: Sequence[Message], tools: bool) -> tuple[bool, ToolChoice]:
    return messages[-1].role != "assistant", _TOOLS if tools else ToolChoice()


def _writes_same(format: ChatFormat, write: Callable[[tuple[Message, ...], bool], str | None]) -> bool:
    """Whether a known format writes what a template writes for every conversation that the template takes."""
    for messages, tools in product(_CONVERSATIONS, (False, True)):
        expected = write(messages, tools)
        if expected is None:
            continue
        try:
            text = _join_pieces(render_chat(format, messages, *_render_options(messages, tools)))
        except UserError:
            # a format without tools refuses those that a template would silently drop
            calls = [call.name for message in messages for call in message.tool_calls]
            names = [*calls, *(_TOOLS.tool_names if tools else [])]
            if names and not any(name in expected for name in names):
                continue
            return False
        if text != expected:
            return False
    return True


def _join_pieces(pieces: Sequence[ChatPiece]) -> str:
    """The text of pieces, in which the tokens of roles differ from text."""
    return "".join(f"\0{piece.text}\0" if piece.kind == "role" else piece.text for piece in pieces)
