"""Shared by the tests of visualize."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.viz.html_pages import Page

from polyhead import Choice, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

GERMAN = [
    "ein hund bellt .",
    "zwei hunde bellen laut .",
    "ein <b>roter</b> hund schläft",
    "</script><script>",
] * 5

ENGLISH = ["a dog barks .", "two dogs bark aloud .", "a <b>red</b> dog sleeps", '&amp; "x"'] * 5


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained run with a recipe whose text lies there, embeddings shared."""
    return make(tmp_path_factory.mktemp("draw"), "all")


def make(place: Path, tie: str) -> Path:
    for name, lines in (("de", GERMAN), ("en", ENGLISH)):
        (place / name).write_text("\n".join(lines) + "\n")
    tokenizer = train_tokenizer([*GERMAN, *ENGLISH], Choice("bpe"), 320)
    sizes = {
        "d_model": 16,
        "n_heads": 2,
        "n_layers": 1,
        "max_len": 24,
        "position": "t5",
        "tie_embeddings": tie,
    }
    recipe = Recipe.model_validate(
        {"data": {"root": place, "train": ["de", "en"], "valid": ["de", "en"], "source_lang": "de",
            "target_lang": "en"},
         "model": sizes, "train": {"steps": 1}}
    )  # fmt: skip
    model = build(recipe.model.with_vocabulary(tokenizer.vocab_size), seed=0)
    Run(model, tokenizer, GenerationConfig(), recipe).save(place / "run")
    return place / "run"


def clouds(page: Path) -> dict[str, Any]:
    (found,) = [data for data in Page(page.read_text()).data() if isinstance(data, dict) and "near" in data]
    assert isinstance(found, dict)
    return found
