"""Shared by the tests of plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.models import build
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

MODEL = "{d_model: 16, n_layers: 1, n_heads: 2, max_len: 32}"

TRAIN = "{epochs: 3, max_tokens: 256, precision: fp32}"

RECIPES = {
    "translation": f"data: {{train: [t.en, t.de], valid: [v.en, v.de]}}\ntokenizer: {{vocab_size: "
    f"300}}\nmodel: {MODEL}\ntrain: {TRAIN}\n",
    "language-model": f"task: language-model\ndata: {{train: t.en, valid_fraction: 0.1, max_len: "
    f"16}}\ntokenizer: {{kind: char}}\nmodel: {MODEL}\n"
    f"train: {TRAIN}\n",
    "masked-lm": f"task: masked-lm\ndata: {{train: t.en, valid: v.en, document_separator: line, max_len: "
    f"16}}\ntokenizer: {{vocab_size: 300}}\n"
    f"model: {MODEL}\ntrain: {TRAIN}\n",
    "replaced-token-detection": f"task: replaced-token-detection\ndata: {{train: t.en, valid: v.en, "
    f"document_separator: line, max_len: 16}}\ntokenizer: {{vocab_size: 300}}\n"
    f"model: {MODEL[:-1]}, generator_layers: 1}}\ntrain: {TRAIN}\n",
    "denoising": f"task: denoising\ndata: {{train: t.en, valid: v.en, document_separator: line, max_len: "
    f"16}}\ntokenizer: {{vocab_size: 300}}\n"
    f"model: {MODEL}\ntrain: {TRAIN}\n",
    "classification": "task: classification\ndata: {train: t.tsv, valid: v.tsv, text: text, label: label}\n"
    f"tokenizer: {{vocab_size: 300}}\nmodel: {MODEL}\ntrain: {TRAIN}\n",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with some text of every kind and a recipe for each task, to stand in."""
    monkeypatch.chdir(tmp_path)
    bits = np.random.default_rng(1)
    words = ["the", "dog", "barks", "at", "two", "red", "cats", "here"]
    for split, n in (("t", 300), ("v", 20)):
        rows = [" ".join(bits.choice(words, bits.integers(2, 9))) for _ in range(n)]
        Path(f"{split}.en").write_text("".join(f"{row}\n" for row in rows))
        Path(f"{split}.de").write_text("".join(f"{row[::-1]}\n" for row in rows))
        Path(f"{split}.tsv").write_text("text\tlabel\n" + "".join(f"{row}\t{len(row) % 3}\n" for row in rows))
    for name, text in RECIPES.items():
        Path(f"{name}.yaml").write_text(text)
    return tmp_path


def begun_with(home: Path) -> None:
    """A run "first" and a recipe "tuned.yaml" that begins with it."""
    tokenizer = train_tokenizer((home / "t.en").read_text().splitlines(), Choice("bpe"), 300)
    config = ModelConfig(
        kind="decoder", vocab_size=tokenizer.vocab_size, d_model=16, n_layers=2, n_heads=2, max_len=32
    )
    Run(build(config, 1), tokenizer, GenerationConfig()).save(home / "first")
    Path("tuned.yaml").write_text(
        "task: language-model\ninit_from: first\ndata: {train: t.en, valid_fraction: 0.1, max_len: 16}\n"
        "train: {steps: 3, max_tokens: 256, precision: fp32}\n"
    )
