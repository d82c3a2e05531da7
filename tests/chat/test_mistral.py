import pytest
from tests.chat.chat_helpers import CALL_NOW, QUESTION, TOOLS, parse_output

from polyhead.chat.base import Message, ToolCall
from polyhead.chat.tools import build_tool_choice
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT

RESULT = Message("tool", "3")


@pytest.mark.parametrize("blank", ["", " "])
def test_calls_are_parsed_without_their_mark(blank):
    for text in ('[{"name": "now", "arguments": {}}]', '{"name": "now", "arguments": {}, "id": "a"}'):
        for mark in ("", "[TOOL_CALLS]"):
            assert parse_output("mistral", f"{mark}{blank}{text}") == ("", [("now", "{}")])


def test_call_ids_must_have_nine_characters():
    other = Message("assistant", "", (ToolCall("now", "{}", "a-b"),))
    for call, message in ((other, "the id 'a-b' of a call must be nine letters"), (CALL_NOW, "the id ''")):
        with pytest.raises(UserError, match=message):
            CHAT.build(Choice("mistral")).render([QUESTION, call, RESULT], True)


@pytest.mark.parametrize("style", ["first", "v1"])
def test_old_styles_refuse_tools(style):
    format = CHAT.build(Choice("mistral", style=style))
    message = f"tools in the style '{style}'; v3 and tekken do"
    for messages, tools in (([QUESTION], TOOLS), ([QUESTION, CALL_NOW, RESULT], None)):
        with pytest.raises(UserError, match=f"does not support {message}"):
            format.render(messages, True, build_tool_choice(tools))
