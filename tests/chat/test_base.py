"""Tests of chat/base.py."""

from __future__ import annotations

import pytest
from tests.chat.published_chats import format_choice

from polyhead.chat.apply_template import render_chat
from polyhead.chat.base import Message, ToolCall, merge_system
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT


@pytest.mark.parametrize(
    ("talk", "answer", "said"),
    [
        ([], True, "must have a message with the role 'user'"),
        (["system"], True, "must have a message with the role 'user'"),
        (["user", "assistant"], True, "it must have the role 'user'"),
        (["system", "system"], True, "must have a message with the role 'user'"),
        (["usr"], True, "did you mean 'user'"),
        (["tool", "user"], True, "message 0 has the role 'tool'"),
    ],
)
@pytest.mark.parametrize("name", CHAT.names())
def test_orders_of_roles_that_make_no_sense_are_refused(name, talk, answer, said):
    with pytest.raises(UserError, match=said) as refused:
        CHAT.build(format_choice(name)).render([Message(role, "x") for role in talk], answer)
    assert "\n" not in str(refused.value)


S, U, A = (lambda text, role=role: Message(role, text) for role in ("system", "user", "assistant"))
MERGED = [
    ([S("1"), U("2")], [S("1"), U("2")]),
    ([S("1"), S("2"), U("3")], [S("1\n\n2"), U("3")]),
    ([U("1"), A("2"), S("3"), U("4")], [U("1"), A("2"), U("3\n\n4")]),
    ([S("0"), U("1"), S("2"), A("3"), U("4")], [S("0"), U("1\n\n2"), A("3"), U("4")]),
    ([U("1"), S("2"), S("3")], [U("1\n\n2\n\n3")]),
    ([U("1"), A("2"), S("3")], [U("1"), A("2"), U("3")]),
    ([S("1"), U("2"), A("3"), S("4"), S("5"), U("6"), S("7")],
        [S("1"), U("2"), A("3"), U("4\n\n5\n\n6\n\n7")]),
]  # fmt: skip
IN_PLACE = ("chatml", "jinja", "llama3", "phi3", "plain", "tulu", "zephyr")


@pytest.mark.parametrize(("talk", "merged"), MERGED, ids=range(len(MERGED)))
@pytest.mark.parametrize("name", CHAT.names())
def test_system_messages_may_be_anywhere_and_several(name, talk, merged):
    """In its place where the format writes every role alike, else as a part of the user messages."""
    part = CHAT.build(format_choice(name))
    wanted = talk if name in IN_PLACE else merged
    assert merge_system(talk) == merged
    assert part.render(talk, True) == part.render(wanted, True)
    written = "".join(piece.text for piece in part.render(talk, True))
    if name in IN_PLACE:
        places = [written.index(message.content) for message in talk]
        assert places == sorted(places)


@pytest.mark.parametrize("name", CHAT.names())
def test_the_start_of_an_answer_is_left_open(name):
    """It is the written answer without what follows its content."""
    part = CHAT.build(format_choice(name))
    talk = [U("x"), A("one"), U("y"), A("two three")]
    whole, opened = (
        "".join(piece.text for piece in pieces)
        for pieces in (part.render(talk, False), render_chat(part, talk, True))
    )
    assert opened == whole[: whole.index("two three") + len("two three")]
    assert render_chat(part, [*talk[:-1], A("")], True) == part.render(talk[:-1], True)


@pytest.mark.parametrize("name", ["llama2", "mistral", "gemma"])
def test_where_turns_are_taken_they_must_be(name):
    for roles, place in (
        (["user", "user"], 1),
        (["system", "assistant"], 1),
        (["system", "user", "user"], 2),
    ):
        with pytest.raises(
            UserError, match=f"must alternate user/assistant, user first; message {place} has"
        ):
            CHAT.build(format_choice(name)).render([Message(role, "x") for role in roles], False)


ABLE = ("chatml", "llama3", "mistral")

ASK, CALL = Message("user", "x"), Message("assistant", "", (ToolCall("now", "{}", "call00one"),))


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        ([ASK, Message("tool", "3")], "message 1 has the role 'tool', but no earlier message calls a "
                                      "function"),
        ([ASK, CALL, ASK, Message("tool", "3")], "message 3 has the role 'tool', but no earlier message"),
        ([ASK, CALL, Message("tool", "3", (), "two")], "message 2 answers the call 'two'; earlier calls: "
            "'call00one'"),
        ([Message("user", "x", CALL.tool_calls)], "message 0 has the role 'user'; only the assistant can "
            "call functions"),
        ([ASK, CALL], "the last message has the role 'assistant'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ABLE)
def test_an_order_of_calls_and_results_that_makes_no_sense_is_refused(
    name: str, talk: list[Message], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        CHAT.build(format_choice(name)).render(talk, True)
