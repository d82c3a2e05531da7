"""Shared by the tests of eval and of baselines: a trained run of every task, with test files."""

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
KINDS = ["translation", "classification", "language-model", "masked-lm", "denoising", "chat"]
KINDS += ["replaced-token-detection"]
SPLITS = {"train": 60, "valid": 12, "test": 12}


def write_texts(directory: Path) -> None:
    """Write parallel, labelled and conversational files; one sentence is more frequent than the others."""
    rng = random.Random(5)
    for split, count in SPLITS.items():
        rows = [["ein", "hund", "bellt"]] * (count // 6)
        rows += [rng.choices(list(WORDS), k=rng.randint(3, 6)) for _ in range(count - len(rows))]
        rng.shuffle(rows)
        sources = [" ".join(words) for words in rows]
        targets = [" ".join(WORDS[word] for word in words) for words in rows]
        (directory / f"{split}.de").write_text("".join(f"{text}\n" for text in sources))
        (directory / f"{split}.en").write_text("".join(f"{text}\n" for text in targets))
        table = "".join(f"{'loud' if 'barks' in text else 'quiet'}\t{text}\n" for text in targets)
        (directory / f"{split}.tsv").write_text(f"label\ttext\n{table}")
        pairs = list(zip(sources, targets, strict=True))
        roles, pairs = ("user", "assistant"), zip(sources, targets, strict=True)
        turns = ([*zip(roles, pair, strict=True)] for pair in pairs)
        conversations = [[{"role": role, "content": text} for role, text in pair] for pair in turns]
        lines = "".join(json.dumps({"messages": messages}) + "\n" for messages in conversations)
        (directory / f"{split}.jsonl").write_text(lines)


def recipe_of(directory: Path, kind: str, **train: Any) -> Recipe:
    end = {"translation": None, "classification": "tsv", "chat": "jsonl"}.get(kind, "en")
    files = {split: f"{split}.{end}" if end else [f"{split}.de", f"{split}.en"] for split in SPLITS}
    data: dict[str, Any] = {"root": str(directory), "max_len": 120, **files}
    data |= {"text": "text", "label": "label"} if kind == "classification" else {}
    model = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_len": 120}
    settings = {"steps": 2, "max_tokens": 480, "precision": "fp32", "eval_every": 1, "lr": 1e-5}
    return Recipe.model_validate(
        {
            "task": kind,
            "data": data,
            "tokenizer": {"kind": "char"},
            "model": model | ({"generator_layers": 1} if kind == "replaced-token-detection" else {}),
            "train": settings | train,
            "generation": {"beam_size": 1} if kind == "translation" else {},
            "out": directory / kind,
        }
    )


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the text and a run of each kind, by its name."""
    directory = tmp_path_factory.mktemp("baselines")
    write_texts(directory)
    for kind in KINDS:
        run_training(recipe_of(directory, kind), report=Notes())
    return directory


def copy_runs(runs_dir: Path, directory: Path) -> Path:
    """Copy the runs as to another machine, which has only the test files."""
    for kind in KINDS:
        shutil.copytree(runs_dir / kind, directory / kind)
    for path in runs_dir.glob("test.*"):
        shutil.copy(path, directory)
    return directory


@pytest.fixture
def moved_runs(runs_dir: Path, tmp_path: Path) -> Path:
    return copy_runs(runs_dir, tmp_path)


def card(run_dir: Path) -> dict[str, str]:
    """The table of a run's README.md."""
    text = (run_dir / "README.md").read_text()
    return dict(re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE))
