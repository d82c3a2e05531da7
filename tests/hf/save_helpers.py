"""Shared by the tests of save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.hf.conftest import TEXTS, VOCABULARY

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

LIKE_GPT2 = {
    "kind": "decoder", "d_model": 24, "n_heads": 3, "n_layers": 2, "max_len": 32, "norm_first": True,
    "position": "learned", "feed_forward": {"name": "gelu", "tanh": True}, "scale_embedding": False,
}  # fmt: skip


def config(**changes: Any) -> ModelConfig:
    return ModelConfig(vocab_size=VOCABULARY, **(LIKE_GPT2 | changes))


def saved(directory: Path, **changes: Any) -> Any:
    model = build(config(**changes), seed=1)
    generation = GenerationConfig(temperature=0.8, top_p=0.9, no_repeat_ngram_size=4)
    Run(model, train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY), generation).save(directory)
    return model
