"""Conversations, tokenizers and reference renderings that the tests of chat formats share."""

import json
import random
from functools import cache
from typing import Any

import pytest
import transformers
from tests.chat.published_chats import LOOKALIKES, PUBLISHED_TEMPLATES

import tokenizers
from polyhead.chat.base import Message, ToolCall, build_tool_choice, parse_tool_calls
from polyhead.chat.detect_template import detect_format
from polyhead.chat.tool_calls import ToolCallParser
from polyhead.core.choice import Choice
from polyhead.core.registry import CHAT
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

TOOL_FORMATS = ("chatml", "llama3", "mistral")
QUESTION = Message("user", "x")
CALL_NOW = Message("assistant", "", (ToolCall("now", "{}", "call00one"),))
NOW_TEXT = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
PLACE_SCHEMA = {
    "type": "object",
    "properties": {"place": {"enum": ["Rome", "Oslo"]}, "days": {"$ref": "#/$defs/n"}},
    "$defs": {"n": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["place", "days"],
    "additionalProperties": False,
}
FUNCTIONS = {"name": "weather", "parameters": PLACE_SCHEMA}, {"name": "now"}
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
TEXTS = ["user assistant system model", "Hello! How are you? [INST] <<SYS>>", "I am well.\n\nYou?"]
TEXTS += ["犬が鳴く 🐕", "User: Assistant:"]
ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
FORMAT_TOKENS = {
    "chatml": ["<|im_start|>", "<|im_end|>"],
    "jinja": ["<|im_start|>", "<|im_end|>"],
    "llama3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "gemma": ["<start_of_turn>", "<end_of_turn>"],
    "phi3": ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"],
    "mistral": ["[INST]", "[/INST]"],
}
VOCABULARIES = ["bytes", "prepend", "replace", "first", "always"]


def pairs_in_turn(names: Any, options: list[Any]) -> list[Any]:
    """All pairs; those beyond one option per name, in turn, are slow."""
    return [
        pytest.param(name, option, marks=[pytest.mark.slow] * (i % len(options) != j))
        for i, name in enumerate(names)
        for j, option in enumerate(options)
    ]


@cache
def detect(name: str) -> Choice:
    """The format of a published template or look-alike."""
    return detect_format((PUBLISHED_TEMPLATES | LOOKALIKES)[name])


def to_messages(conversation: list[dict[str, Any]]) -> list[Message]:
    return [
        Message(m["role"], m["content"], parse_tool_calls(m.get("tool_calls"), i), m.get("tool_call_id", ""))
        for i, m in enumerate(conversation)
    ]


def join_pieces(pieces: Any) -> str:
    """The text of rendered pieces, with the tokens of roles as they are spelled."""
    return "".join(ROLES.get(piece.text, "") if piece.kind == "role" else piece.text for piece in pieces)


@cache
def train_vocabulary(kind: str) -> str:
    """A vocabulary that splits text as model families do: bytes, or words with blanks before all of them, the
    first, or none.
    """
    if kind == "bytes":
        return train_tokenizer(TEXTS * 3, Choice("bpe"), 330).tokenizer_json
    words = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=160, special_tokens=SPECIAL, show_progress=False)
    words.train_from_iterator(TEXTS * 3, trainer)
    model_json = json.loads(words.to_str())["model"]
    vocab = model_json["vocab"] | {f"<0x{n:02X}>": len(model_json["vocab"]) + n for n in range(256)}
    merges = [tuple(pair) for pair in model_json["merges"]]
    options = {"unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    inner.add_special_tokens(SPECIAL)
    if kind == "prepend":  # Llama 2, Phi-3
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif kind == "replace":  # Gemma
        inner.normalizer = normalizers.Replace(" ", "▁")
    else:  # "first": Mistral 0.3
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
    steps = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    inner.decoder = decoders.Sequence([*steps])
    return inner.to_str()


@cache
def vocabulary(
    kind: str, format: str, rstrip: bool = False, marks: tuple[str, ...] = (), special: bool = False
) -> str:
    """The JSON of a vocabulary with the tokens of a format, ``rstrip`` as those of Phi-3, and of calls."""
    inner = tokenizers.Tokenizer.from_str(train_vocabulary(kind))
    tokens = [AddedToken(token, special=True, rstrip=rstrip) for token in FORMAT_TOKENS.get(format, [])]
    inner.add_special_tokens(tokens)
    inner.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
    return inner.to_str()


@cache
def load_tokenizer(vocabulary: str) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(vocabulary), ROLES)


@cache
def load_reference(vocabulary: str, template: str) -> transformers.PreTrainedTokenizerFast:
    """The tokenizer of transformers with the same vocabulary and a chat template."""
    inner = tokenizers.Tokenizer.from_str(vocabulary)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=template, **ROLES)


@cache
def train_tool_tokenizer(special: bool | None) -> Tokenizer:
    """A tokenizer that knows the marks of calls as special tokens, as other tokens, or (None) not at all."""
    texts = [NOW_TEXT, '{"place": "Rome", "days": 123456789} Oslo weather']
    inner = train_tokenizer(texts * 10, Choice("bpe"), 320)._inner
    inner.add_special_tokens(FORMAT_TOKENS["chatml"] + FORMAT_TOKENS["llama3"])
    marks = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]") if special is not None else ()
    inner.add_tokens([AddedToken(mark, special=bool(special), normalized=False) for mark in marks])
    return Tokenizer(inner)


def parse_output(
    name: str, text: str, cuts: random.Random | None = None, **options: Any
) -> tuple[str, list[tuple[str, str]]]:
    """The content and calls that a format's parser finds in a text, which may come in random pieces."""
    parser = ToolCallParser(CHAT.build(Choice(name)).tool_syntax, build_tool_choice(TOOLS, **options))
    content, calls, start = "", [], 0
    while cuts is not None and start < len(text):
        end = start + cuts.randrange(1, 6)
        delta, new_calls = parser.feed(text[start:end])
        content, calls, start = content + delta, calls + new_calls, end
    delta, new_calls = parser.feed("" if cuts else text, True)
    return content + delta, [(call.name, call.arguments) for call in calls + new_calls]
