"""Shared by the tests of eval_baselines."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.train.conftest import Notes

from polyhead.config.recipe import Recipe
from polyhead.train.run_training import run_training

WORDS = {"ein": "a", "hund": "dog", "katze": "cat", "bellt": "barks", "rennt": "runs", "Berlin": "Berlin"}

KINDS = [
    "translation",
    "classification",
    "language-model",
    "masked-lm",
    "denoising",
    "replaced-token-detection",
    "chat",
]

SPLITS = {"train": 60, "valid": 12, "test": 12}


def write_texts(place: Path) -> None:
    """Sentences of two languages, with a class each and as conversations; one sentence is more frequent than
    others.
    """
    chance = random.Random(5)
    for split, count in SPLITS.items():
        rows = [["ein", "hund", "bellt"]] * (count // 6)
        rows += [chance.choices(list(WORDS), k=chance.randint(3, 6)) for _ in range(count - len(rows))]
        chance.shuffle(rows)
        targets = [" ".join(WORDS[word] for word in words) for words in rows]
        (place / f"{split}.de").write_text("".join(" ".join(words) + "\n" for words in rows))
        (place / f"{split}.en").write_text("".join(f"{target}\n" for target in targets))
        labels = ["loud" if "barks" in target else "quiet" for target in targets]
        table = "".join(f"{label}\t{target}\n" for label, target in zip(labels, targets, strict=True))
        (place / f"{split}.tsv").write_text("label\ttext\n" + table)
        talks = [
            [{"role": "user", "content": " ".join(words)}, {"role": "assistant", "content": target}]
            for words, target in zip(rows, targets, strict=True)
        ]
        (place / f"{split}.jsonl").write_text("".join(json.dumps({"messages": t}) + "\n" for t in talks))


def recipe_of(place: Path, kind: str, **train: Any) -> Recipe:
    end = {"translation": None, "classification": "tsv", "chat": "jsonl"}.get(kind, "en")
    files = {s: f"{s}.{end}" if end else [f"{s}.de", f"{s}.en"] for s in SPLITS}
    data: dict[str, Any] = {"root": str(place), "max_len": 120, **files}
    data |= {"text": "text", "label": "label"} if kind == "classification" else {}
    model = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_len": 120}
    return Recipe.model_validate(
        {
            "task": kind,
            "data": data,
            "tokenizer": {"kind": "char"},
            "model": model | ({"generator_layers": 1} if kind == "replaced-token-detection" else {}),
            "train": {
                "steps": 2,
                "max_tokens": 480,
                "precision": "fp32",
                "eval_every": 1,
                "lr": 1e-5,
                **train,
            },
            "generation": {"beam_size": 1} if kind == "translation" else {},
            "out": place / kind,
        }
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("baselines")
    write_texts(directory)
    for kind in KINDS:
        run_training(recipe_of(directory, kind), report=Notes())
    return directory


@pytest.fixture
def moved(place: Path, tmp_path: Path) -> Path:
    """The runs on another machine, which has the test text alone (and what a task opens beside it)."""
    for kind in KINDS:
        shutil.copytree(place / kind, tmp_path / kind)
    for name in place.glob("test.*"):
        shutil.copy(name, tmp_path)
    return tmp_path


def card(run: Path) -> dict[str, str]:
    """The table of a run's README.md."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (run / "README.md").read_text(), re.MULTILINE)
    return dict(rows)
