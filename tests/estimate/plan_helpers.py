from pathlib import Path

import numpy as np
import pytest

from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.models import build
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

SIZES = "d_model: 16, n_layers: 1, n_heads: 2, max_len: 32"
LINES = "train: t.en, valid: v.en, document_separator: line, max_len: 16"
BPE = "vocab_size: 300"


def recipe_text(task, data, tokenizer=BPE, model=SIZES):
    train = "epochs: 3, max_tokens: 256, precision: fp32"
    sections = {"data": data, "tokenizer": tokenizer, "model": model, "train": train}
    return f"task: {task}\n" + "".join(f"{name}: {{{keys}}}\n" for name, keys in sections.items())


LANGUAGE = "train: t.en, valid_fraction: 0.1, max_len: 16"
CLASSES = "train: t.tsv, valid: v.tsv, text: text, label: label"
RECIPES = {
    "translation": recipe_text("translation", "train: [t.en, t.de], valid: [v.en, v.de]"),
    "language-model": recipe_text("language-model", LANGUAGE, "kind: char"),
    **{name: recipe_text(name, LINES) for name in ("masked-lm", "denoising")},
    "replaced-token-detection": recipe_text(
        "replaced-token-detection", LINES, model=f"{SIZES}, generator_layers: 1"
    ),
    "classification": recipe_text("classification", CLASSES),
}
DEFAULT_TASKS = ("translation", "classification")
TASKS = [n if n in DEFAULT_TASKS else pytest.param(n, marks=pytest.mark.slow) for n in RECIPES]


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    words = ["the", "dog", "barks", "at", "two", "red", "cats", "here"]
    for split, n in (("t", 300), ("v", 20)):
        rows = [" ".join(rng.choice(words, rng.integers(2, 9))) for _ in range(n)]
        Path(f"{split}.en").write_text("".join(f"{row}\n" for row in rows))
        Path(f"{split}.de").write_text("".join(f"{row[::-1]}\n" for row in rows))
        Path(f"{split}.tsv").write_text("text\tlabel\n" + "".join(f"{row}\t{len(row) % 3}\n" for row in rows))
    for name, text in RECIPES.items():
        Path(f"{name}.yaml").write_text(text)
    return tmp_path


def write_finetuning_recipe(workdir):
    """Save a run "first", and a recipe "tuned.yaml" that is initialised from it."""
    tokenizer = train_tokenizer((workdir / "t.en").read_text().splitlines(), Choice("bpe"), 300)
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "n_layers": 2, "n_heads": 2, "max_len": 32}
    model = build(ModelConfig(kind="decoder", **sizes), 1)
    Run(model, tokenizer, GenerationConfig()).save(workdir / "first")
    Path("tuned.yaml").write_text(
        "task: language-model\ninit_from: first\ndata: {train: t.en, valid_fraction: 0.1, max_len: 16}\n"
        "train: {steps: 3, max_tokens: 256, precision: fp32}\n"
    )
