"""Tests of chat/mistral.py."""

import pytest
from tests.chat.chat_helpers import CALL_NOW, QUESTION, TOOLS, parse_output

from polyhead.chat.base import Message, ToolCall
from polyhead.chat.tools import ToolChoice, build_tool_choice
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT

RESULT = Message("tool", "3")


@pytest.mark.parametrize("blank", ["", " "])
def test_calls_are_parsed_without_their_mark(blank: str) -> None:
    for text in ('[{"name": "now", "arguments": {}}]', '{"name": "now", "arguments": {}, "id": "a"}'):
        for mark in ("", "[TOOL_CALLS]"):
            assert parse_output("mistral", f"{mark}{blank}{text}") == ("", [("now", "{}")])


def test_call_ids_must_have_nine_characters() -> None:
    format = CHAT.build(Choice("mistral"))
    call = Message("assistant", "", (ToolCall("now", "{}", "a-b"),))
    with pytest.raises(UserError, match="the id 'a-b' of a call must be nine letters or digits"):
        format.render([QUESTION, call, RESULT], True)
    with pytest.raises(UserError, match="the id '' of a call"):
        format.render([QUESTION, CALL_NOW, RESULT], True)


@pytest.mark.parametrize("style", ["first", "v1"])
def test_old_styles_refuse_tools(style: str) -> None:
    format = CHAT.build(Choice("mistral", style=style))
    message = f"does not support tools in the style '{style}'; v3 and tekken do"
    with pytest.raises(UserError, match=message):
        format.render([QUESTION], True, build_tool_choice(TOOLS))
    with pytest.raises(UserError, match=message):
        format.render([QUESTION, CALL_NOW, RESULT], True, ToolChoice())
