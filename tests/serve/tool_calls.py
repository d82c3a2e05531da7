"""Shared by the tests of tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.serve.conftest import TEXTS, living

import tokenizers
from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.generation.decoding.sampling import Sampling
from polyhead.run.run import Run
from polyhead.serve.http.limits import Limits
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import AddedToken

SCHEMA = {"type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer",
    "minimum": 1, "maximum": 9}},
          "required": ["place", "days"], "additionalProperties": False}  # fmt: skip

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "What falls", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]

CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Rome", "days": 2}}\n</tool_call>'


def make(chat: str, special: bool | None) -> Run:
    """A model with the tokens of a format; those about calls are special ones, others, or not there."""
    tokens = train_tokenizer([*TEXTS, CALL, '"parameters" Oslo'] * 5, Choice("bpe"), 330)
    tokens._inner.add_special_tokens(
        ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    )
    marks = [
        AddedToken(mark, special=bool(special), normalized=False)
        for mark in ("<tool_call>", "</tool_call>", "[TOOL_CALLS]")
    ]
    tokens._inner.add_tokens(marks if special is not None else [])
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 2500}
    model = build(ModelConfig(kind="decoder", vocab_size=tokens._inner.get_vocab_size(), **sizes), seed=1)
    return Run(model, Tokenizer(tokens._inner), GenerationConfig(chat=Choice(chat), max_new_tokens=200))


@pytest.fixture(
    scope="module",
    params=[
        ("chatml", None),
        ("chatml", True),
        ("chatml", False),
        ("llama3", None),
        ("mistral", True),
        ("mistral", None),
    ],
    ids=str,
)
def live(request: Any) -> Iterator[Any]:
    with living(make(*request.param), limits=Limits(max_chars=2000)) as found:
        yield found


@pytest.fixture
def says(live: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the model say a text in its next answer; what is special about calls is said
    as special tokens.
    """

    def say(text: str) -> None:
        inner = tokenizers.Tokenizer.from_str(
            live.run.tokenizer.tokenizer_json
        )  # to it special tokens are none
        ids = inner.encode(text, add_special_tokens=False).ids
        script = iter([*ids, live.service.chat.eos_ids[0]])
        monkeypatch.setattr(Sampling, "sample", lambda self, logits, *rest: [next(script)] * len(logits))

    return say


def written(live: Any, text: str) -> str:
    """A text of ChatML as the format of this service has it."""
    name = live.service.chat.choice.name
    if name == "llama3":
        return re.sub("\n?</?tool_call>\n?", "", text).replace("arguments", "parameters")
    return (
        re.sub("<tool_call>\n(.*)\n</tool_call>", r"[TOOL_CALLS] [\1]", text) if name == "mistral" else text
    )
