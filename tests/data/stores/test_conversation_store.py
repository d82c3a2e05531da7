import numpy as np
import pytest
from tests.chat.published_chats import format_choice
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
from polyhead.chat.apply_template import encode_chat, encode_end_tokens, encode_pieces
from polyhead.chat.base import Message
from polyhead.core.registry import CHAT
from polyhead.data.stores.conversation_store import _truncate_conversation

LONG, SHORT = [QUESTION, ANSWER, NEXT_QUESTION, NEXT_ANSWER], [QUESTION, ANSWER]


@pytest.mark.parametrize("name", CHAT.names())
def test_labels_are_the_answers_and_their_ends(tmp_path, tokenizer, name):
    path = write_lines(tmp_path, {"messages": LONG}, {"messages": SHORT})
    store, chat = open_store(path, tokenizer, name), CHAT.build(format_choice(name))
    batch, pad_id, lengths = store.collate(np.array([0, 1]), tokenizer.pad_id), tokenizer.pad_id, []
    assert batch.tokens.shape == batch.labels.shape and not batch.has_documents
    assert store.collate(np.array([1]), pad_id).pos is None
    for messages, tokens, labels, pos in zip(
        (LONG, SHORT), batch.tokens, batch.labels, batch.pos, strict=True
    ):
        ids = encode_chat(chat, tokenizer, [Message(**message) for message in messages]).ids
        n = len(ids) - 1
        lengths.append(n)
        assert tokens[:n].tolist() == ids[:-1]
        assert set(tokens[n:].tolist()) <= {pad_id, ids[-1]}
        assert pos.tolist() == [*range(n), *[-1] * (len(tokens) - n)]
        answers = [[]]
        for i in (labels != -100).nonzero()[:, 0].tolist():
            assert int(labels[i]) == ids[i + 1]
            answers[-1].append(ids[i + 1])
            if ids[i + 1] == encode_end_tokens(chat, tokenizer)[0]:
                answers.append([])
        assert answers.pop() == [] and all(len(answer) > 1 for answer in answers)
        texts = [text.strip() for text in tokenizer.decode(answers)]
        assert texts == [message["content"] for message in messages[1::2]]
    assert store.lengths.tolist() == lengths
    assert open_store(path, tokenizer, name).directory == store.directory
    other_format = "zephyr" if name == "plain" else "plain"
    others = [open_store(path, tokenizer, other_format), open_store(path, tokenizer, name, max_len=190)]
    assert store.directory not in {other.directory for other in others}


@pytest.mark.acceptance("E12")
@pytest.mark.parametrize("n_answers", [1, 2, 100, 199])
def test_truncation_does_not_render_every_prefix(tokenizer, n_answers):
    plain, sizes = CHAT.build(Choice("plain")), []

    class CountingFormat:
        def render(self, messages, answer):
            sizes.append(len(messages))
            return plain.render(messages, answer)

    messages = [Message("assistant" if i % 2 else "user", f"A man {i}.") for i in range(400)]
    prefix = messages[: 2 * n_answers]
    expected, encoded = (encode_pieces(plain.render(x, False), tokenizer) for x in (prefix, messages))

    def truncate(room):
        return _truncate_conversation(encoded, messages, CountingFormat(), tokenizer, room)

    for room in (len(expected.ids), len(expected.ids) + 1):
        assert truncate(room) == (expected, prefix)
    assert sum(sizes) <= 2 * len(messages) * 10
    assert truncate(2) == (None, [])
    assert truncate(len(encoded.ids)) == (encoded, messages)
