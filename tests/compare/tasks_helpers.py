"""Shared by the tests of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from polyhead.cli import main
from polyhead.compare.tasks.base import get_compared_task
from polyhead.core.registry import TASK
from polyhead.models import build
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.loggers import Reporters

SIZES = "model: {d_model: 16, n_layers: 1, n_heads: 2, d_ff: 32, max_len: 24, position: learned}\n"

TRAIN = (
    "train: {steps: 12, max_tokens: 96, lr: 1e-2, precision: fp32, schedule: {name: inverse_sqrt, "
    "warmup: 1}, threads: 1}\n"
)

RECIPES = {
    "masked-lm": "data: {train: train.en, valid: valid.en, test: test.en, document_separator: line, "
    "max_len: 12}\ntokenizer: {kind: char}\n",
    "denoising": "data: {train: train.en, valid: valid.en, test: test.en, document_separator: line, "
    "max_len: 16}\ntokenizer: {kind: char}\n",
    "chat": "data: {train: train.jsonl, valid: valid.jsonl, test: test.jsonl, max_len: 80}\ntokenizer: "
    "{kind: char}\n",
    "classification": "data: {train: train.tsv, valid: valid.tsv, test: test.tsv, text: text, label: label, "
    "max_len: 16}\ntokenizer: {kind: char}\n",
}

OTHERS = sorted(RECIPES)


@pytest.fixture
def texts(place: Path) -> Path:
    """As ``place``, with its English side as classes and as conversations, and a recipe for each task."""
    for split in ("train", "valid", "test"):
        lines = (place / f"{split}.en").read_text().splitlines()
        rows = [
            f"{'long' if len(line) > 14 else 'cat' if 'cat' in line else 'other'}\t{line}" for line in lines
        ]
        (place / f"{split}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
        talks = [
            [{"role": "user", "content": line[:6]}, {"role": "assistant", "content": line[6:12] or "!"}]
            for line in lines
        ]
        (place / f"{split}.jsonl").write_text(
            "".join(json.dumps({"messages": talk}) + "\n" for talk in talks)
        )
    for name, recipe in RECIPES.items():
        sizes = SIZES.replace("24", "80") if name == "chat" else SIZES
        (place / f"{name}.yaml").write_text(f"task: {name}\n{recipe}{sizes}{TRAIN}")
    return place


class Ready:
    """A recipe, its task and an untrained model that is wrong in many ways."""

    def __init__(self, name: str, *changes: str) -> None:
        self.recipe = load_recipe(f"{name}.yaml", [*changes, "data.cache_dir=cache"])
        part = TASK.get(name)
        self.tokenizer = train_tokenizer(part.iter_texts(self.recipe), self.recipe.tokenizer.kind, 280)
        self.task: Any = part.open(self.recipe, self.tokenizer, Reporters())
        config = self.recipe.model.with_vocabulary(self.tokenizer.vocab_size, self.task.labels)
        self.model: Any = build(config, 1).eval()
        with torch.no_grad():
            torch.manual_seed(5)
            for p in self.model.parameters():
                p.add_(0.3 * torch.randn_like(p))
        self.run = Run(self.model, self.tokenizer, self.recipe.generation, self.recipe)
        self.part = get_compared_task(name)

    def quality(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.part.evaluate(self.run, self.recipe, self.task)


def compared_rows(name: str, *options: str) -> dict[str, dict[str, Any]]:
    assert main(["compare", f"{name}.yaml", "--budget", "1steps", *options]) == 0
    found = json.loads(Path(f"runs/compare-{name}/compare.json").read_text())["rows"]
    return {row["name"]: row for row in found}
