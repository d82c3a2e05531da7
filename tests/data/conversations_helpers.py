"""Shared by the tests of conversations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.chat.published_chats import format_choice

from polyhead import Choice
from polyhead.data.readers.conversations import open_conversations
from polyhead.data.stores.conversation_store import ConversationStore
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

ASK, TELL = (
    {"role": "user", "content": "How are you? 犬"},
    {"role": "assistant", "content": "I am well.\nYou?"},
)

TOKENS = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<start_of_turn>",
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
        found, format_choice(chat), tokenizer, path.parent / "cache", max_len=max_len
    )
