import pytest
from tests.chat.chat_helpers import CALL_NOW, QUESTION, TOOL_FORMATS
from tests.chat.published_chats import format_choice

from polyhead.chat.apply_template import render_chat
from polyhead.chat.base import Message, merge_system
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT

RESULT, OTHER_RESULT = Message("tool", "3"), Message("tool", "3", (), "two")
USER_CALL = Message("user", "x", CALL_NOW.tool_calls)
CALLS = [
    ([QUESTION, RESULT], "message 1 has the role 'tool', but no earlier message calls a function"),
    ([QUESTION, CALL_NOW, QUESTION, RESULT], "message 3 has the role 'tool', but no earlier message"),
    ([QUESTION, CALL_NOW, OTHER_RESULT], "message 2 answers the call 'two'; earlier calls: 'call00one'"),
    ([USER_CALL], "message 0 has the role 'user'; only the assistant can call functions"),
    ([QUESTION, CALL_NOW], "the last message has the role 'assistant'"),
]


@pytest.mark.parametrize("name", CHAT.names())
def test_invalid_orders_of_messages_are_refused(name):
    format = CHAT.build(format_choice(name))
    for roles, message in (
        ([], "must have a message with the role 'user'"),
        (["system"], "must have a message with the role 'user'"),
        (["user", "assistant"], "it must have the role 'user'"),
        (["system", "system"], "must have a message with the role 'user'"),
        (["usr"], "did you mean 'user'"),
        (["tool", "user"], "message 0 has the role 'tool'"),
    ):
        with pytest.raises(UserError, match=message) as error:
            format.render([Message(role, "x") for role in roles], True)
        assert "\n" not in str(error.value)
    for messages, message in CALLS if name in TOOL_FORMATS else ():
        with pytest.raises(UserError, match=message):
            format.render(messages, True)
    alternations = [(1, ["user", "user"]), (1, ["system", "assistant"]), (2, ["system", "user", "user"])]
    for index, roles in alternations if name in ("llama2", "mistral", "gemma") else ():
        message = f"must alternate user/assistant, user first; message {index} has"
        with pytest.raises(UserError, match=message):
            format.render([Message(role, "x") for role in roles], False)


ROLES = ("system", "user", "assistant")
SYSTEM, USER, ASSISTANT = (lambda text, role=role: Message(role, text) for role in ROLES)
MERGED_SYSTEM = [
    ([SYSTEM("1"), USER("2")], [SYSTEM("1"), USER("2")]),
    ([SYSTEM("1"), SYSTEM("2"), USER("3")], [SYSTEM("1\n\n2"), USER("3")]),
    ([USER("1"), ASSISTANT("2"), SYSTEM("3"), USER("4")], [USER("1"), ASSISTANT("2"), USER("3\n\n4")]),
    (
        [SYSTEM("0"), USER("1"), SYSTEM("2"), ASSISTANT("3"), USER("4")],
        [SYSTEM("0"), USER("1\n\n2"), ASSISTANT("3"), USER("4")],
    ),
    ([USER("1"), SYSTEM("2"), SYSTEM("3")], [USER("1\n\n2\n\n3")]),
    ([USER("1"), ASSISTANT("2"), SYSTEM("3")], [USER("1"), ASSISTANT("2"), USER("3")]),
    ([USER("1"), ASSISTANT("2"), *map(SYSTEM, "345")], [USER("1"), ASSISTANT("2"), USER("3\n\n4\n\n5")]),
]
IN_PLACE = ("chatml", "jinja", "llama3", "phi3", "plain", "tulu", "zephyr")


@pytest.mark.parametrize("name", CHAT.names())
def test_system_messages_are_rendered_in_place_or_merged(name):
    """In place where the format writes every role alike, else as a part of the user messages."""
    format = CHAT.build(format_choice(name))
    for messages, merged_messages in MERGED_SYSTEM:
        assert merge_system(messages) == merged_messages
        pieces = format.render(messages, True)
        assert pieces == format.render(messages if name in IN_PLACE else merged_messages, True)
        text = "".join(piece.text for piece in pieces)
        if name in IN_PLACE:
            starts = [text.index(message.content) for message in messages]
            assert starts == sorted(starts)


@pytest.mark.parametrize("name", CHAT.names())
def test_final_assistant_message_is_left_open(name):
    """It is the complete answer up to the end of its content."""
    format = CHAT.build(format_choice(name))
    messages = [USER("x"), ASSISTANT("one"), USER("y"), ASSISTANT("two three")]
    complete, left_open = (
        "".join(piece.text for piece in pieces)
        for pieces in (format.render(messages, False), render_chat(format, messages, True))
    )
    assert left_open == complete[: complete.index("two three") + len("two three")]
    assert render_chat(format, [*messages[:-1], ASSISTANT("")], True) == format.render(messages[:-1], True)
