"""Conversations are read line by line; what is no conversation is counted by its place, and nothing is asked
but the answers.
"""

from __future__ import annotations

import json
import zlib

import pytest
from tests.data.conversations_helpers import ASK, TELL, lines, store
from tests.data.conversations_helpers import tokenizer as tokenizer

from polyhead import Choice
from polyhead.chat.base import Message
from polyhead.core.errors import UserError
from polyhead.data.readers.conversations import ConversationReport, open_conversations, parse_chat_line
from polyhead.tokenizers.train_tokenizer import train_tokenizer

SYSTEM = {"role": "system", "content": "Be brief."}
MORE, END = {"role": "user", "content": "well"}, {"role": "assistant", "content": "Good 🐕"}


def test_what_is_no_conversation_is_counted_by_its_place(tmp_path, tokenizer):
    path = lines(
        tmp_path,
        {"messages": [ASK, TELL]},
        b"",
        b"{",
        b"\xff",
        {"messages": "x"},
        {"messages": [ASK, {"role": "assistant", "content": 1}]},
        {"messages": [ASK]},
        {"messages": [TELL, ASK, {"role": "assistant", "content": " "}]},
        {"messages": [{"role": "tool", "content": "x"}, TELL]},
        {"messages": [SYSTEM]},
        b'{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "x"}]}',
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "id": 7},
        {"messages": [ASK | {"name": "x"}, TELL | {"weight": 1}, MORE]},
        {"messages": [ASK, TELL, MORE, END]},
        {"messages": [ASK | {"content": "How " * 400}, TELL]},
        *[{"messages": [ASK, TELL]}] * 4,
    )
    report = store(path, tokenizer, max_len=50).report
    assert str(report) == (
        "talks.jsonl: 9 of 19 conversations, 9 answers; skipped 1 blank (first: line 2), 1 overlong (first: "
        "line 15), 5 broken (first: line 3), 3 unfit (first: line 7); truncated 1 (first: line 14)"
    )
    assert report.examples["malformed"] == [f"line {n}" for n in (3, 4, 5, 6, 11)]
    told = "line 9, message 0 has the role 'tool', but this chat format does not support tools"
    assert any(one.startswith(told) for one in report.examples["unsupported"])
    assert (
        report.total == report.used + report.empty + report.too_long + report.malformed + report.unsupported
    )
    again = store(path, tokenizer, max_len=50)
    assert again.report == report


def test_the_words_of_others_are_understood():
    assert parse_chat_line(json.dumps({"conversations": [
        {"from": "system", "value": "s"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
            {"from": "human", "value": "c"}
    ]}).encode()) == [Message("system", "s"), Message("user", "a"), Message("assistant", "b")]  # fmt: skip
    assert parse_chat_line(None) == "too_long"
    assert parse_chat_line(b'{"messages": [' + b"[" * 100_000) == "malformed"
    answer = b'{"messages": [{"role": "assistant", "content": "yes"%s}]}'
    assert parse_chat_line(answer % b"") == [Message("assistant", "yes")]
    assert parse_chat_line(answer % b', "content": "no"') == "malformed"


@pytest.mark.parametrize(
    ("weight", "learned"), [(1, True), (1.0, True), (None, True), (0, False), (0.5, False), ("1", False)]
)
def test_an_answer_that_shall_not_be_learned_is_not(tmp_path, tokenizer, weight, learned):
    """The weight of anything else says nothing: only answers are learned."""
    told = [SYSTEM | {"weight": 0}, ASK | {"weight": 0}, TELL | {"weight": weight}, MORE | {"weight": 7}, END]
    path = lines(tmp_path, {"messages": [ASK, TELL]}, {"messages": told})
    report = ConversationReport(path.name)
    kept = [len(found.messages) for found in open_conversations([path]).read(report)]
    assert (kept, report.unsupported) == (([2, 5], 0) if learned else ([2], 1))


def test_a_share_is_held_out_by_the_question(tmp_path, tokenizer):
    questions = [f"How {i}" for i in range(10)]
    path = lines(tmp_path, *[{"messages": [ASK | {"content": asked}, TELL]} for asked in questions])

    def asked(held):
        found = open_conversations([path], 0.3, held).read(ConversationReport("x"))
        return [one.messages[0].content for one in found]

    assert asked(True) == [one for one in questions if zlib.crc32(one.encode()) < 0.3 * 2**32] != []
    assert sorted(asked(True) + asked(False)) == questions


def test_a_share_of_no_conversation_says_what_would_do(tmp_path, tokenizer):
    path = lines(tmp_path, *[{"messages": [ASK, TELL]}] * 30)
    with pytest.raises(
        UserError, match=r"this selects none of the 30 conversations in talks.jsonl; set data.valid$"
    ):
        list(open_conversations([path], 1e-9, True).read(ConversationReport("x")))


def test_files_without_a_conversation_are_refused(tmp_path, tokenizer):
    with pytest.raises(
        UserError, match=r'none of its first 2 lines is a conversation; expected JSONL such as \{"messages"'
    ):
        open_conversations([lines(tmp_path, {"text": "x"}, {"text": "y"})])
    with pytest.raises(UserError, match=r"no file 'talk.jsonl'.*did you mean 'talks.jsonl'"):
        open_conversations([tmp_path / "talk.jsonl"])
    path = lines(
        tmp_path,
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "a"}, TELL]},
        name="b.jsonl",
    )
    with pytest.raises(
        UserError,
        match=r"no usable conversation in b.jsonl: 0 of 1 .* must alternate user/assistant, user first; "
        r"message 1 has",
    ):
        store(path, tokenizer, "gemma")
    mostly = lines(tmp_path, {"messages": [ASK, TELL]}, b"{", b"{", name="c.jsonl")
    with pytest.raises(UserError, match="most lines are invalid"):
        store(mostly, tokenizer)


def test_a_vocabulary_without_the_tokens_of_a_format_is_told_so(tmp_path):
    plain = train_tokenizer(["How are you?"], Choice("bpe"), 280)
    with pytest.raises(UserError, match="this chat format needs the token"):
        store(lines(tmp_path, {"messages": [ASK, TELL]}), plain, "chatml")
