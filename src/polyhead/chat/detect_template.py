"""Detect the chat format of a template: a known one if it writes the same text, else the template itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from polyhead.chat.apply_template import render_chat
from polyhead.chat.base import ChatFormat, ChatPiece, Message, ToolCall
from polyhead.chat.jinja import JinjaChat
from polyhead.chat.sandbox.client import TemplateError
from polyhead.chat.sandbox.limits import MAX_TEMPLATE_CHARS
from polyhead.chat.tools import ToolChoice, build_tool_choice
from polyhead.core.atomic_io import read_regular_file
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT

_OWN_TEMPLATE = re.compile(r"\{# polyhead: (.*?) #\}")
# the end of a string, then the role of a message
_ROLE_PATTERN = r"['\"]\s*\+\s*(?:\(\s*)?(?:message|role)"
# default system message, as a string or as text of the template
_DEFAULT_SYSTEM = re.compile(
    r"(?:(['\"])|(?<!['\"]))<\|im_start\|>system(?:\\n|\n)((?:(?!\1)[^{}<])+)<\|im_end\|>"
)
# default dates of Llama 3.1
_LLAMA3_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

_SYSTEM, _BLANK_SYSTEM = Message("system", "Be  brief.\n\n"), Message("system", "")
_QUESTION, _FOLLOW_UP, _LAST_QUESTION = (
    Message("user", " Is 2 < 3?\n"),
    Message("user", "And\t'so' \"on\"?"),
    Message("user", "é"),
)
_ANSWER, _BLANK_ANSWER = Message("assistant", "\n Yes. "), Message("assistant", "")
_REASONED_ANSWER = Message("assistant", "<think>\nlet me see\n</think>\n\nYes.")
_CALL = Message("assistant", "", (ToolCall("add_up", '{"a": 1, "b": "é <"}', "call00001"),))
_CALLS = Message("assistant", "I add.", (*_CALL.tool_calls, ToolCall("read_clock", "{}", "call00002")))
_RESULT, _OTHER_RESULT = (
    Message("tool", '{"sum": 3}', (), "call00001"),
    Message("tool", " noon ", (), "call00002"),
)
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
    part: ChatFormat = CHAT.build(CHAT.check(choice))
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
    for detector in _DETECTORS:
        if (detected := detector(template)) and _writes_same(CHAT.build(CHAT.check(detected)), part):
            return CHAT.check(detected)
    return CHAT.check(Choice("jinja", template=template))


def read_template_file(path: Path) -> Choice:
    """The chat format of a template in a file."""
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
        # a file must not name code to import
        return CHAT.check(choice) if choice and choice.name in CHAT.names() else None
    except (UserError, ValueError, RecursionError):
        return None


def _writes_same(format: ChatFormat, part: JinjaChat) -> bool:
    """Whether a known format writes what a template writes for every conversation that the template takes."""
    for messages in _CONVERSATIONS:
        continues = messages[-1].role != "assistant"
        for tools in (ToolChoice(), _TOOLS):
            try:
                expected = part.render_exactly(messages, continues, tools)
            except TemplateError:
                continue
            try:
                pieces = render_chat(format, messages, continues, tools)
            except UserError:
                # a format without tools refuses those that a template would silently drop
                if _drops_tools(expected, messages, tools):
                    continue
                return False
            if list(_merge_text(pieces)) != list(_merge_text(expected)):
                return False
    return True


def _drops_tools(pieces: Sequence[ChatPiece], messages: Sequence[Message], tools: ToolChoice) -> bool:
    """Whether a template wrote none of the tools and calls of a conversation that has some."""
    text = "".join(piece.text for piece in pieces)
    names = [*tools.tool_names, *(call.name for message in messages for call in message.tool_calls)]
    return bool(names) and not any(name in text for name in names)


def _merge_text(pieces: Sequence[ChatPiece]) -> Iterator[tuple[str, bool]]:
    """The text of pieces between the tokens of roles, and those: each with whether it is a role."""
    text = ""
    for piece in pieces:
        if piece.kind != "role":
            text += piece.text
            continue
        if text:
            yield text, False
        yield piece.text, True
        text = ""
    if text:
        yield text, False


def _detect_llama3(template: str) -> Choice | None:
    if not re.search(r"<\|start_header_id\|>" + _ROLE_PATTERN, template) or "<|eot_id|>" not in template:
        return None
    return Choice("llama3", header=_LLAMA3_DATES if "Cutting Knowledge Date" in template else "")


def _detect_chatml(template: str) -> Choice | None:
    if not re.search(r"<\|im_start\|>" + _ROLE_PATTERN, template) or "<|im_end|>" not in template:
        return None
    system = _DEFAULT_SYSTEM.search(template)
    return Choice(
        "chatml",
        system=system[2].replace("\\n", "\n") if system else "",
        bos="bos_token" in template,
        thinks="</think>" in template,
    )


def _detect_gemma(template: str) -> Choice | None:
    if not re.search(r"<start_of_turn>" + _ROLE_PATTERN, template) or "<end_of_turn>" not in template:
        return None
    return Choice("gemma", system="first" if "first_user_prefix" in template else "none")


def _detect_llama2(template: str) -> Choice | None:
    return Choice("llama2") if "[INST] " in template and "<<SYS>>" in template else None


def _detect_mistral(template: str) -> Choice | None:
    if "[/INST]" not in template or "eos_token" not in template or "[SYSTEM_PROMPT]" in template:
        return None
    if re.search(r"['\"] \[INST\] ['\"]", template):
        style = "v1"
    elif re.search(r"['\"]\[INST\] ['\"]", template):
        style = "first" if re.search(r"['\"] \[/INST\]['\"]", template) else "v3"
    elif re.search(r"['\"]\[INST\]['\"]", template):
        style = "tekken"
    else:
        return None
    if "system" not in template:
        return Choice("mistral", style=style, system="none")
    return Choice("mistral", style=style, system="first" if "loop.first" in template else "last")


def _detect_phi3(template: str) -> Choice | None:
    lines = re.search(r"<\|user\|>(?:['\"]\s*\+\s*['\"])?(?:\\n|\n)", template)
    marks = lines and "<|end|>" in template and "<|assistant|>" in template
    return Choice("phi3", bos="bos_token" in template) if marks else None


def _detect_zephyr(template: str) -> Choice | None:
    lines = re.search(
        r"<\|user\|>(?:\\n|\n)['\"]\s*\+\s*message\[['\"]content['\"]\]\s*\+\s*eos_token", template
    )
    return Choice("zephyr") if lines and "<|assistant|>" in template else None


def _detect_tulu(template: str) -> Choice | None:
    lines = re.search(
        r"<\|user\|>(?:\\n|\n)['\"]\s*\+\s*message\[['\"]content['\"]\]\s*\+\s*['\"](?:\\n|\n)['\"]", template
    )
    marks = lines and "<|assistant|>" in template and "eos_token" in template
    return Choice("tulu", bos="bos_token" in template) if marks else None


_DETECTORS: tuple[Callable[[str], Choice | None], ...] = (
    _detect_llama3, _detect_chatml, _detect_gemma, _detect_llama2, _detect_mistral, _detect_phi3,
    _detect_zephyr, _detect_tulu,
)  # fmt: skip
