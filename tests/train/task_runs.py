"""A recipe of a second for each task, for tests of what all tasks have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.config.recipe import Recipe

TASKS = (
    "translation",
    "language-model",
    "chat",
    "classification",
    "masked-lm",
    "replaced-token-detection",
    "denoising",
)
COLOURS = {"red": "warm", "orange": "warm", "blue": "cold", "green": "cold"}
MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "dropout": 0.1, "max_len": 32}


def write_texts(place: Path) -> None:
    """Sentences about colours: as pairs, as text, with labels and as conversations."""
    rng = np.random.default_rng(4)
    for split, count in (("train", 60), ("valid", 30)):
        words = [rng.choice(list(COLOURS), rng.integers(1, 6)).tolist() for _ in range(count)]
        lines = [" ".join(row) for row in words]
        (place / f"{split}.a").write_text("".join(f"{line}\n" for line in lines))
        (place / f"{split}.b").write_text("".join(f"{line.upper()}\n" for line in lines))
        (place / f"{split}.txt").write_text("".join(f"the house is {line} .\n" for line in lines))
        rows = [f"{line}\t{COLOURS[row[0]]}\n" for line, row in zip(lines, words, strict=True)]
        (place / f"{split}.tsv").write_text("text\tlabel\n" + "".join(rows))
        talks = [
            [{"role": "user", "content": line}, {"role": "assistant", "content": COLOURS[row[0]]}]
            for line, row in zip(lines, words, strict=True)
        ]
        (place / f"{split}.jsonl").write_text("".join(json.dumps({"messages": t}) + "\n" for t in talks))


def task_recipe(place: Path, task: str, out: Path, *, steps: int = 6, **train: Any) -> Recipe:
    """A small recipe for the task on the texts of ``write_texts``."""
    data: dict[str, Any] = {
        "train": "train.txt",
        "valid": "valid.txt",
        "document_separator": "line",
        "max_len": 16,
    }
    if task == "translation":
        data = {"train": ["train.a", "train.b"], "valid": ["valid.a", "valid.b"], "max_len": 24}
    if task in ("chat", "classification"):
        kind = {"chat": "jsonl", "classification": "tsv"}[task]
        data = {"train": f"train.{kind}", "valid": f"valid.{kind}", "max_len": 30}
    model = MODEL | ({"n_layers": 2, "generator_layers": 1} if task == "replaced-token-detection" else {})
    return Recipe.model_validate(
        {
            "task": task,
            "data": {"root": place, "cache_dir": place / "cache", **data},
            "tokenizer": {"kind": "char"},
            "model": model,
            "train": {"steps": steps, "max_tokens": 128, "lr": 5e-3, "precision": "fp32", "log_every": 2,
                      "eval_every": 3, "save_every": 3, **train},
            "generation": {"beam_size": 1} if task == "translation" else {},
            "out": out,
        }
    )  # fmt: skip
