import json

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
from polyhead.chat.base import Message
from polyhead.core.errors import UserError
from polyhead.data.readers.conversations import ConversationReport, open_conversations, parse_chat_line
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
    assert parse_chat_line(line) == [Message(*role) for role in roles]
    answer = b'{"messages": [{"role": "assistant", "content": "yes"%s}]}'
    assert parse_chat_line(answer % b"") == [Message("assistant", "yes")]
    assert parse_chat_line(answer % b', "content": "no"') == "malformed"
    assert parse_chat_line(b'{"messages": [' + b"[" * 100_000) == "malformed"
    assert parse_chat_line(None) == "too_long"


@pytest.mark.parametrize(
    ("weight", "is_used"), [(1, True), (1.0, True), (None, True), (0, False), (0.5, False), ("1", False)]
)
def test_conversation_with_another_answer_weight_is_skipped(tmp_path, weight, is_used):
    """Weights of other messages are ignored."""
    messages = [SYSTEM | {"weight": 0}, QUESTION | {"weight": 0}, ANSWER | {"weight": weight}]
    messages += [NEXT_QUESTION | {"weight": 7}, NEXT_ANSWER]
    path = write_lines(tmp_path, {"messages": [QUESTION, ANSWER]}, {"messages": messages})
    report = ConversationReport(path.name)
    lengths = [len(example.messages) for example in open_conversations([path]).read(report)]
    assert (lengths, report.unsupported) == (([2, 5], 0) if is_used else ([2], 1))


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
