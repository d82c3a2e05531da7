from itertools import groupby

import numpy as np
import pytest
from tests.chat.published_chats import LOOKALIKES, format_choice
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
from polyhead.chat.formats import PlainChat
from polyhead.core.registry import CHAT
from polyhead.data.readers.conversations import ChatRow, open_conversations
from polyhead.data.stores.conversation_store import ConversationStore, _encode_within

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


NOW = {"id": "call00001", "type": "function", "function": {"name": "now", "arguments": "{}"}}
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
CALL = {"role": "assistant", "content": "I look.", "tool_calls": [NOW]}
RESULT = {"role": "tool", "content": "noon", "tool_call_id": "call00001"}
CALL_TEXT = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
REASONING_TEXT = "<think>\nhm\nso\n</think>\n\n"
NO_THOUGHT = "<think>\n\n</think>\n\n"  # as Qwen 3 learned answers without reasoning
SKIP_FLAG, LATER = {"train": False}, [NEXT_QUESTION, NEXT_ANSWER]
REASONING_ANSWER, UNLEARNED_ANSWER = ANSWER | {"reasoning_content": "hm\nso"}, ANSWER | SKIP_FLAG


NO_REASONING = "message 1 has reasoning, which this chat format does not write"
NO_TOOLS = "but this chat format does not support tools"


@pytest.mark.parametrize(
    ("chat", "messages", "tools", "expected"),
    [
        ("chatml", [QUESTION, CALL, RESULT, NEXT_ANSWER], TOOLS, [f"I look.\n{CALL_TEXT}", "Good 🐕"]),
        ("chatml", [QUESTION, CALL | {"content": None}], None, [CALL_TEXT]),
        ("chatml", [QUESTION, UNLEARNED_ANSWER, NEXT_QUESTION, NEXT_ANSWER], None, ["Good 🐕"]),
        ("chatml", [QUESTION, ANSWER, NEXT_QUESTION, UNLEARNED_ANSWER], TOOLS, ["I am well.\nYou?"]),
        ("thinks", [QUESTION, REASONING_ANSWER], None, [f"{REASONING_TEXT}I am well.\nYou?"]),
        ("thinks", [QUESTION, REASONING_ANSWER | CALL], None, [f"{REASONING_TEXT}I look.\n{CALL_TEXT}"]),
        ("chatml", [QUESTION, REASONING_ANSWER], None, NO_REASONING),
        ("smollm3", [QUESTION, REASONING_ANSWER], None, NO_REASONING),
        ("thinks", [QUESTION, REASONING_ANSWER, *LATER], None, f"{NO_REASONING} before a later"),
        ("thinks", [QUESTION, REASONING_ANSWER | SKIP_FLAG, *LATER], None, [f"{NO_THOUGHT}Good 🐕"]),
        ("plain", SHORT, TOOLS, f"tools are given (now), {NO_TOOLS}"),
        (
            "deepseek-r1",
            SHORT,
            [TOOLS[0] | {"function": {"name": "How"}}],
            f"tools are given (How), {NO_TOOLS}",
        ),
        ("zephyr", [QUESTION, CALL], None, f"message 1 calls functions, {NO_TOOLS}"),
        ("mistral", [QUESTION, CALL], None, "message 1 has a text and calls, of which"),
    ],
)
def test_parts_of_a_row_are_rendered_or_named(tmp_path, tokenizer, chat, messages, tools, expected):
    choice = Choice("chatml", thinks=True) if chat == "thinks" else Choice(chat)
    choice = Choice("jinja", template=LOOKALIKES[chat]) if chat in LOOKALIKES else choice
    path = write_lines(tmp_path, {"messages": SHORT}, {"messages": messages, "tools": tools})
    args = open_conversations([path]), choice, tokenizer, tmp_path / "cache"
    store = ConversationStore.open_or_build(*args, max_len=2000)
    if isinstance(expected, str):
        assert store.report.used == 1 and f"(first: line 2, {expected}" in str(store.report)
        return
    cells = slice(*store.offsets[1:3])
    (text,) = tokenizer.decode([store.ids[cells].tolist()])
    assert ('{"type": "function", "function": {"name": "now"' in text) == bool(tools)
    runs = groupby(zip(store.assistant_mask[cells], store.ids[cells].tolist(), strict=True), lambda x: x[0])
    answers = [[i for _, i in run] for is_label, run in runs if is_label]
    assert {answer.pop() for answer in answers} == {tokenizer.token_to_id("<|im_end|>")}
    assert tokenizer.decode(answers) == expected


@pytest.mark.acceptance("E12")
@pytest.mark.parametrize("n_answers", [1, 2, 100, 199])
def test_truncation_does_not_render_every_prefix(tokenizer, n_answers):
    plain, sizes = CHAT.build(Choice("plain")), []

    class CountingFormat(PlainChat):
        def render(self, messages, answer):
            sizes.append(len(messages))
            return super().render(messages, answer)

    messages = [Message("assistant" if i % 2 else "user", f"A man {i}.") for i in range(400)]
    prefix = messages[: 2 * n_answers]
    expected, encoded = (encode_pieces(plain.render(x, False), tokenizer) for x in (prefix, messages))

    def truncate(room):
        row = ChatRow(messages, [message.role == "assistant" for message in messages])
        return _encode_within(row, CountingFormat(), tokenizer, room)

    for room in (len(expected.ids), len(expected.ids) + 1):
        assert truncate(room) == (expected, prefix)
    assert sum(sizes) <= 2 * len(messages) * 10
    assert truncate(2) == (None, [])
    assert truncate(len(encoded.ids)) == (encoded, messages)
