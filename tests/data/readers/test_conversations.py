"""Conversations are read line by line; what is no conversation is counted by its place, and nothing is asked but the answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from polyhead import Choice
from polyhead.chat.apply_template import encode_chat, encode_end_tokens, encode_pieces
from polyhead.chat.base import Message
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.data.readers.conversations import ConversationReport, open_conversations, parse_chat_line
from polyhead.data.stores.conversation_store import ConversationStore, _truncate_conversation
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

SYSTEM = {"role": "system", "content": "Be brief."}
ASK, TELL = (
    {"role": "user", "content": "How are you? 犬"},
    {"role": "assistant", "content": "I am well.\nYou?"},
)
MORE, END = {"role": "user", "content": "well"}, {"role": "assistant", "content": "Good 🐕"}
TOKENS = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>",
          "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = train_tokenizer(["How are you? I am well. Good"] * 3, Choice("bpe"), 290)
    made._inner.add_special_tokens(TOKENS)
    return Tokenizer(made._inner)


def lines(place: Path, *rows: object, name: str = "talks.jsonl") -> Path:
    path = place / name
    path.write_bytes(
        b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)
    )
    return path


def store(path: Path, tokenizer: Tokenizer, chat: str = "plain", max_len: int = 200, **options: object):
    found = open_conversations([path], **options)
    return ConversationStore.open_or_build(
        found, Choice(chat), tokenizer, path.parent / "cache", max_len=max_len
    )


@pytest.mark.parametrize("name", CHAT.names())
def test_what_is_asked_for_is_every_answer_and_the_end_of_its_turn(tmp_path, tokenizer, name):
    path = lines(tmp_path, {"messages": [ASK, TELL, MORE, END]}, {"messages": [ASK, TELL]})
    made = store(path, tokenizer, name)
    batch, part = made.collate(np.array([0, 1]), tokenizer.pad_id), CHAT.build(Choice(name))
    assert batch.tokens.shape == batch.labels.shape and batch.pos is not None and not batch.has_documents
    assert made.collate(np.array([1]), tokenizer.pad_id).pos is None
    for row, answers in enumerate([[TELL, END], [TELL]]):
        talk = [Message(**one) for one in ([ASK, TELL, MORE, END] if row == 0 else [ASK, TELL])]
        whole = encode_chat(part, tokenizer, talk).ids
        asked = (batch.labels[row] != -100).nonzero()[:, 0].tolist()
        assert batch.tokens[row, : len(whole) - 1].tolist() == whole[:-1]
        assert set(batch.tokens[row, len(whole) - 1 :].tolist()) <= {tokenizer.pad_id, whole[-1]}
        places = [*range(len(whole) - 1), *[-1] * (batch.tokens.size(1) + 1 - len(whole))]
        assert batch.pos[row].tolist() == places
        assert all(int(batch.labels[row, i]) == whole[i + 1] for i in asked)
        found: list[list[int]] = [[]]
        for i in asked:
            found[-1].append(whole[i + 1])
            if whole[i + 1] == encode_end_tokens(part, tokenizer)[0]:
                found.append([])
        assert found.pop() == [] and [len(one) for one in found] == [
            len(one) for one in found if len(one) > 1
        ]
        assert [text.strip() for text in tokenizer.decode(found)] == [one["content"] for one in answers]
    assert made.lengths.tolist() == [
        len(made.ids[: made.offsets[1]]) - 1,
        made.offsets[2] - made.offsets[1] - 1,
    ]


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
        {"messages": [ASK, SYSTEM, TELL]},
        b'{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "x"}]}',
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "id": 7},
        {"messages": [ASK | {"name": "x"}, TELL | {"weight": 1}, MORE]},
        {"messages": [ASK, TELL, MORE, END]},
        {"messages": [ASK | {"content": "How " * 400}, TELL]},
        *[{"messages": [ASK, TELL]}] * 4,
    )
    report = store(path, tokenizer, max_len=50).report
    assert str(report) == (
        "talks.jsonl: 9 of 19 conversations, 9 answers; skipped 1 blank (first: line 2), 1 overlong (first: line 15), "
        "5 broken (first: line 3), 3 unfit (first: line 7); cut 1 (first: line 14)"
    )
    assert report.examples["malformed"] == [f"line {n}" for n in (3, 4, 5, 6, 11)]
    told = "line 9, message 0 has the role 'tool', and this chat format has no way to write tools"
    assert any(one.startswith(told) for one in report.examples["unsupported"])
    assert (
        report.total == report.used + report.empty + report.too_long + report.malformed + report.unsupported
    )
    again = store(path, tokenizer, max_len=50)
    assert again.report == report


@pytest.mark.acceptance("E12")
@pytest.mark.parametrize("kept", [1, 2, 100, 199])
def test_the_room_for_a_long_conversation_is_found_without_writing_it_anew_for_each_answer(tokenizer, kept):
    plain, written = CHAT.build(Choice("plain")), []

    class Counted:
        def render(self, messages, answer):
            written.append(len(messages))
            return plain.render(messages, answer)

    talk = [Message("assistant" if i % 2 else "user", f"A man {i}.") for i in range(400)]
    wanted = encode_pieces(plain.render(talk[: 2 * kept], False), tokenizer)
    whole = encode_pieces(plain.render(talk, False), tokenizer)
    for room in (len(wanted.ids), len(wanted.ids) + 1):
        assert _truncate_conversation(whole, talk, Counted(), tokenizer, room) == (wanted, talk[: 2 * kept])
    assert sum(written) <= 2 * len(talk) * 10
    assert _truncate_conversation(whole, talk, Counted(), tokenizer, 2) == (None, [])
    assert _truncate_conversation(whole, talk, Counted(), tokenizer, len(whole.ids)) == (whole, talk)


def test_the_words_of_others_are_understood():
    assert parse_chat_line(json.dumps({"conversations": [
        {"from": "system", "value": "s"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}
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


def test_a_share_is_held_out_evenly(tmp_path, tokenizer):
    path = lines(tmp_path, *[{"messages": [ASK | {"content": f"How {i}"}, TELL]} for i in range(10)])

    def asked(held):
        found = open_conversations([path], 0.3, held).read(ConversationReport("x"))
        return [one.messages[0].content for one in found]

    assert asked(True) == ["How 3", "How 6", "How 9"]
    assert sorted(asked(True) + asked(False)) == [f"How {i}" for i in range(10)]


def test_a_share_of_no_conversation_says_what_would_do(tmp_path, tokenizer):
    path = lines(tmp_path, *[{"messages": [ASK, TELL]}] * 30)
    with pytest.raises(
        UserError, match=r"of the 30 conversations in talks.jsonl that is none; 0.034 or more would"
    ):
        list(open_conversations([path], 0.001, True).read(ConversationReport("x")))
    assert len(list(open_conversations([path], 0.034, True).read(ConversationReport("x")))) == 1


def test_files_without_a_conversation_are_refused(tmp_path, tokenizer):
    with pytest.raises(
        UserError, match=r'none of its first 2 lines is a conversation; wanted JSONL such as \{"messages"'
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
        match=r"no usable conversation in b.jsonl: 0 of 1 .* take turns, the user first; message 1 is",
    ):
        store(path, tokenizer, "gemma")
    mostly = lines(tmp_path, {"messages": [ASK, TELL]}, b"{", b"{", name="c.jsonl")
    with pytest.raises(UserError, match="most lines are broken"):
        store(mostly, tokenizer)


def test_a_vocabulary_without_the_tokens_of_a_format_is_told_so(tmp_path):
    plain = train_tokenizer(["How are you?"], Choice("bpe"), 280)
    with pytest.raises(UserError, match="this chat format needs the token"):
        store(lines(tmp_path, {"messages": [ASK, TELL]}), plain, "chatml")


def test_another_format_or_vocabulary_is_another_store(tmp_path, tokenizer):
    path = lines(tmp_path, {"messages": [ASK, TELL]})
    places = {store(path, tokenizer, name).directory for name in ("plain", "zephyr", "chatml")}
    places |= {store(path, tokenizer, max_len=90).directory, store(path, tokenizer).directory}
    assert len(places) == 4
