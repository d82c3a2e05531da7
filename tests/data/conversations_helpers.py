import json

import pytest
from tests.chat.published_chats import format_choice

from polyhead import Choice
from polyhead.data.readers.conversations import open_conversations
from polyhead.data.stores.conversation_store import ConversationStore
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

QUESTION = {"role": "user", "content": "How are you? 犬"}
ANSWER = {"role": "assistant", "content": "I am well.\nYou?"}
NEXT_QUESTION = {"role": "user", "content": "well"}
NEXT_ANSWER = {"role": "assistant", "content": "Good 🐕"}
SPECIAL_TOKENS = [
    *("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>"),
]


@pytest.fixture(scope="module")
def tokenizer():
    trained = train_tokenizer(["How are you? I am well. Good"] * 3, Choice("bpe"), 290)
    trained._inner.add_special_tokens(SPECIAL_TOKENS)
    return Tokenizer(trained._inner)


def write_lines(directory, *rows, name="talks.jsonl"):
    """Lines of bytes as they are, others as JSON."""
    path = directory / name
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def open_store(path, tokenizer, chat="plain", max_len=200):
    return ConversationStore.open_or_build(
        open_conversations([path]), format_choice(chat), tokenizer, path.parent / "cache", max_len=max_len
    )
