"""Tests of data/stores/conversation_store.py."""

from __future__ import annotations

import numpy as np
import pytest
from tests.chat.published_chats import format_choice
from tests.data.conversations_helpers import ASK, TELL, lines, store
from tests.data.conversations_helpers import tokenizer as tokenizer

from polyhead import Choice
from polyhead.chat.apply_template import encode_chat, encode_end_tokens, encode_pieces
from polyhead.chat.base import Message
from polyhead.core.registry import CHAT
from polyhead.data.stores.conversation_store import _truncate_conversation

MORE, END = {"role": "user", "content": "well"}, {"role": "assistant", "content": "Good 🐕"}


@pytest.mark.parametrize("name", CHAT.names())
def test_what_is_asked_for_is_every_answer_and_the_end_of_its_turn(tmp_path, tokenizer, name):
    path = lines(tmp_path, {"messages": [ASK, TELL, MORE, END]}, {"messages": [ASK, TELL]})
    made = store(path, tokenizer, name)
    batch, part = made.collate(np.array([0, 1]), tokenizer.pad_id), CHAT.build(format_choice(name))
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


def test_another_format_or_vocabulary_is_another_store(tmp_path, tokenizer):
    path = lines(tmp_path, {"messages": [ASK, TELL]})
    places = {store(path, tokenizer, name).directory for name in ("plain", "zephyr", "chatml")}
    places |= {store(path, tokenizer, max_len=90).directory, store(path, tokenizer).directory}
    assert len(places) == 4
