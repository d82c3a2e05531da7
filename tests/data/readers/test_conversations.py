import json
import re

import pytest
from tests.data.conversations_helpers import (
    ANSWER,
    NEXT_ANSWER,
    NEXT_QUESTION,
    QUESTION,
    open_store,
    write_lines,
)
from tests.data.conversations_helpers import tokenizer as tokenizer

from polyhead import Choice
from polyhead.chat.base import Message, ToolCall
from polyhead.core.errors import UserError
from polyhead.data.readers.conversations import ConversationReport, open_conversations, parse_chat_line
from polyhead.serve.openai.schemas import ChatBody
from polyhead.tokenizers.train_tokenizer import train_tokenizer

SYSTEM = {"role": "system", "content": "Be brief."}


def test_invalid_lines_are_counted_with_their_place(tmp_path, tokenizer):
    path = write_lines(
        tmp_path,
        {"messages": [QUESTION, ANSWER]},
        b"",
        b"{",
        b"\xff",
        {"messages": "x"},
        {"messages": [QUESTION, {"role": "assistant", "content": 1}]},
        {"messages": [QUESTION]},
        {"messages": [ANSWER, QUESTION, {"role": "assistant", "content": " "}]},
        {"messages": [{"role": "tool", "content": "x"}, ANSWER]},
        {"messages": [SYSTEM]},
        b'{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "x"}]}',
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "id": 7},
        {"messages": [QUESTION | {"name": "x"}, ANSWER | {"weight": 1}, NEXT_QUESTION]},
        {"messages": [QUESTION, ANSWER, NEXT_QUESTION, NEXT_ANSWER]},
        {"messages": [QUESTION | {"content": "How " * 400}, ANSWER]},
        *[{"messages": [QUESTION, ANSWER]}] * 4,
    )
    report = open_store(path, tokenizer, max_len=50).report
    assert str(report) == (
        "talks.jsonl: 9 of 19 conversations, 9 answers; skipped 1 blank (first: line 2), 1 overlong (first: "
        "line 15), 5 broken (first: line 3), 3 unfit (first: line 7); truncated 1 (first: line 14)"
    )
    assert report.examples["malformed"] == [f"line {n}" for n in (3, 4, 5, 6, 11)]
    message = "line 9, message 0 has the role 'tool', but this chat format does not support tools"
    assert any(example.startswith(message) for example in report.examples["unsupported"])
    n_skipped = report.empty + report.too_long + report.malformed + report.unsupported
    assert report.total == report.used + n_skipped
    assert open_store(path, tokenizer, max_len=50).report == report


def test_sharegpt_lines_are_parsed_and_invalid_ones_classified():
    turns = [("system", "s"), ("human", "a"), ("gpt", "b"), ("human", "c")]
    line = json.dumps({"conversations": [{"from": name, "value": text} for name, text in turns]}).encode()
    roles = [("system", "s"), ("user", "a"), ("assistant", "b")]
    assert parse_chat_line(line).messages == [Message(*role) for role in roles]
    answer = b'{"messages": [{"role": "assistant", "content": "yes"%s}]}'
    assert parse_chat_line(answer % b"").messages == [Message("assistant", "yes")]
    assert parse_chat_line(answer % b', "content": "no"') == "malformed"
    assert parse_chat_line(b'{"messages": [' + b"[" * 100_000) == "malformed"
    assert parse_chat_line(None) == "too_long"


@pytest.mark.parametrize(
    ("field", "is_learned"),
    [
        *(({"weight": weight}, True) for weight in (1, 1.0, None)),
        *(({name: value}, False) for name, value in (("weight", 0), ("train", False), ("train", 0))),
        *(({"weight": weight}, None) for weight in (0.5, "1")),
    ],
)
def test_answers_out_of_the_loss(tmp_path, field, is_learned):
    """Weights of other messages are ignored; of an answer, others than 0 and 1 are refused."""
    messages = [SYSTEM | {"weight": 0}, QUESTION | {"weight": 0}, ANSWER | field]
    messages += [NEXT_QUESTION | {"weight": 7}, NEXT_ANSWER, NEXT_QUESTION, ANSWER | {"train": False}]
    path = write_lines(tmp_path, {"messages": [QUESTION, ANSWER]}, {"messages": messages})
    report = ConversationReport(path.name)
    flags = [row.is_learned for _, row in open_conversations([path]).read(report)]
    expected = [] if is_learned is None else [[False, False, is_learned, False, True]]
    assert (flags, report.unsupported) == ([[False, True], *expected], is_learned is None)


CALL = {"id": "a", "type": "function", "function": {"name": "now", "arguments": {"at": [1]}}}
READ = ToolCall("now", '{"at": [1]}', "a")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"content": "I look.", "tool_calls": [CALL]}, Message("assistant", "I look.", (READ,))),
        ({"content": "", "tool_calls": [CALL]}, Message("assistant", "", (READ,))),
        ({"content": None, "tool_calls": [CALL]}, Message("assistant", "", (READ,))),
        (ANSWER | {"reasoning_content": "hm"}, Message("assistant", ANSWER["content"], reasoning="hm")),
        (
            ANSWER | {"reasoning": "hm", "tool_calls": None},
            Message("assistant", ANSWER["content"], reasoning="hm"),
        ),
        (
            {"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
            Message("assistant", "a b"),
        ),
        (
            {"content": [{"type": "image_url"}]},
            "message 1 has a part 'image_url'; this model supports text only",
        ),
        (
            {"content": None, "function_call": {"name": "f"}},
            "message 1 has function_call, which is not supported",
        ),
        ({"content": None, "refusal": "No."}, "message 1 has refusal, which is not supported"),
        ({"content": None}, "message 1 has neither content nor tool_calls"),
        (ANSWER | {"thinking": "hm"}, "message 1 has thinking, which is not supported"),
    ],
)
def test_messages_are_read_as_by_the_service(fields, expected):
    raw = [QUESTION, {"role": "assistant"} | fields]
    row = parse_chat_line(json.dumps({"messages": raw}).encode())
    if isinstance(expected, str):
        assert row.startswith(f"unsupported: {expected}")
    else:
        assert row.messages[1] == ChatBody(messages=raw).messages[1] == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [{"name": "f"}]}, "tool 0 is {'name': 'f'}, expected"),
        ({"functions": [{"name": "f"}]}, "the row has functions, which is not supported"),
        ({"system": "Be brief."}, "the row has system, which is read only as the first"),
        ({"messages": [QUESTION | {"train": True}, ANSWER]}, "message 0 has train, but only"),
    ],
)
def test_skipped_rows_are_named_with_the_reason(tmp_path, tokenizer, fields, message):
    usable = {"messages": [QUESTION, ANSWER]}
    report = open_store(write_lines(tmp_path, usable, usable | fields), tokenizer).report
    assert (report.used, report.unsupported) == (1, 1)
    assert f"skipped 1 unfit (first: line 2, {message}" in str(report)
    with pytest.raises(UserError, match=f"none of its first 1 lines is a conversation; {re.escape(message)}"):
        open_store(write_lines(tmp_path, usable | fields), tokenizer)


def test_files_without_a_conversation_are_refused(tmp_path, tokenizer):
    def assert_refused(message, *rows, tokenizer=tokenizer, chat="plain"):
        with pytest.raises(UserError, match=message):
            open_store(write_lines(tmp_path, *rows), tokenizer, chat)

    usable, two_questions = {"messages": [QUESTION, ANSWER]}, {"messages": [QUESTION, QUESTION, ANSWER]}
    assert_refused(
        r'none of its first 2 lines is .* JSONL such as \{"messages"', {"text": "x"}, {"text": "y"}
    )
    message = r"no usable conversation in talks.jsonl: 0 of 1 .* must alternate user/assistant, .*message 1"
    assert_refused(message, two_questions, chat="gemma")
    assert_refused("most lines are invalid", usable, b"{", b"{")
    plain = train_tokenizer(["How are you?"], Choice("bpe"), 280)
    assert_refused("this chat format needs the token", usable, tokenizer=plain, chat="chatml")
    with pytest.raises(UserError, match=r"no file 'talk.jsonl'.*did you mean 'talks.jsonl'"):
        open_conversations([tmp_path / "talk.jsonl"])
