"""Shared by the tests of rerankers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.hf.conftest import TEXTS
from tests.hf.families.encoders import published
from tests.hf.families.encoders_cases import CLASSES, ROBERTA, SIZES, Case

PAIRS = [(a, b) for a in TEXTS for b in TEXTS]

FIRST, NEWER, NEWEST = (
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "config_sentence_transformers.json",
)


def reranker(directory: Path, said: dict[str, Any], seed: int = 0) -> torch.Tensor:
    """The logits of all pairs."""
    config, more = ("BertConfig", {}) if seed else ("RobertaConfig", ROBERTA)
    model = published(Case(config, CLASSES, {**SIZES, **more, "num_labels": 1}), directory, seed=seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    with torch.no_grad():
        logits = [model(**tokenizer(*pair, return_tensors="pt")).logits[0, 0] for pair in PAIRS]
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {k: v for k, v in said.items() if k != NEWEST}))
    if NEWEST in said:
        (directory / NEWEST).write_text(json.dumps({"activation_fn": said[NEWEST]}))
    return torch.stack(logits)
