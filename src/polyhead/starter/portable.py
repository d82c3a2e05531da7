"""Parts that make a proposed model one that another tool holds. ``polyhead.export.targets`` says whether it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Section = dict[str, Any]

BERT: Section = {
    "block": "transformer", "feed_forward": "gelu", "norm_first": False, "embedding_norm": True, "segments": 2,
}  # fmt: skip
PARTS: Mapping[str, Mapping[str, Section]] = {
    "translation": {"hf": {"position": {"name": "sinusoidal", "layout": "halves"}}},  # Pegasus
    "masked-lm": {"hf": BERT},
    "classification": {"hf": BERT | {"pooling": "first"}, "ctranslate2": {"block": "transformer"}},
}


def portable(task: str, model: Section, target: str) -> Section:
    """The model with the parts that the format ``target`` wants in place of its own."""
    return model | PARTS.get(task, {}).get(target, {})
