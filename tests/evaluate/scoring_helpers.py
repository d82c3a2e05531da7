"""Shared by the tests of scoring."""

from __future__ import annotations

from pathlib import Path

import torch

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

LINES = ["anna and bert", "carl", "", "dora and emil and anna"]


def made(directory: Path, documents: str | None) -> Path:
    """An untrained run on names, with the recipe of its training or without."""
    tokenizer = train_tokenizer([line + "\n" for line in LINES] * 5, Choice("bpe"), 280)
    config = ModelConfig(
        kind="decoder", vocab_size=tokenizer.vocab_size, d_model=16, n_heads=2, n_layers=1, max_len=24
    )
    (directory / "names.txt").write_text("\n".join(LINES) + "\n")
    data = {
        "root": directory,
        "train": "names.txt",
        "valid_fraction": 0.6,
        "document_separator": documents,
        "max_len": 6,
    }
    recipe = {
        "task": "language-model",
        "data": data,
        "train": {"steps": 1},
        "model": {"d_model": 16, "n_heads": 2},
    }
    model = build(config, seed=1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    run = Run(
        model,
        tokenizer,
        GenerationConfig(batch_tokens=20),
        Recipe.model_validate(recipe) if documents else None,
    )
    run.save(directory / "run")
    return directory / "run"
