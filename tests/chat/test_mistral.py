"""Tests of chat/mistral.py."""

from __future__ import annotations

import pytest
from tests.chat.tool_calls_helpers import TOOLS, heard

from polyhead.chat.base import Message, ToolCall
from polyhead.chat.tools import ToolChoice, build_tool_choice
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT

ASK, CALL = Message("user", "x"), Message("assistant", "", (ToolCall("now", "{}", "call00one"),))


@pytest.mark.parametrize("blank", ["", " "])
def test_a_mark_that_the_text_does_not_tell_is_not_missed(blank: str) -> None:
    for text in ('[{"name": "now", "arguments": {}}]', '{"name": "now", "arguments": {}, "id": "a"}'):
        for mark in ("", "[TOOL_CALLS]"):
            assert heard("mistral", f"{mark}{blank}{text}") == ("", [("now", "{}")])


def test_mistral_wants_ids_of_nine_and_its_first_styles_know_no_tools() -> None:
    part = CHAT.build(Choice("mistral"))
    with pytest.raises(UserError, match="the id 'a-b' of a call must be nine letters or digits"):
        part.render(
            [ASK, Message("assistant", "", (ToolCall("now", "{}", "a-b"),)), Message("tool", "3")], True
        )
    with pytest.raises(UserError, match="the id '' of a call"):
        part.render([ASK, CALL, Message("tool", "3")], True)
    for style in ("first", "v1"):
        old = CHAT.build(Choice("mistral", style=style))
        for talk, tools in (
            ([ASK], build_tool_choice(TOOLS)),
            ([ASK, CALL, Message("tool", "3")], ToolChoice()),
        ):
            with pytest.raises(
                UserError, match=f"does not support tools in the style '{style}'; v3 and tekken do"
            ):
                old.render(talk, True, tools)
