"""Shared by the tests of visualize and of its page."""

from pathlib import Path
from typing import Any

import pytest
from tests.viz.html_pages import Page

from polyhead import Choice, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.run.run_examples import write_examples
from polyhead.tokenizers.train_tokenizer import train_tokenizer

GERMAN = ["ein hund bellt .", "zwei hunde bellen .", "ein <b>roter</b> hund", "</script><script>"] * 5
ENGLISH = ["a dog barks .", "two dogs bark aloud .", "a <b>red</b> dog sleeps", '&amp; "x"'] * 5


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained run with shared embeddings and a recipe whose text exists."""
    return make(tmp_path_factory.mktemp("visualize"), "all")


def make(directory: Path, tie: str) -> Path:
    """Save an untrained translator and its text; return the directory of the run."""
    tokenizer = train_tokenizer([*GERMAN, *ENGLISH], Choice("bpe"), 320)
    files, languages = ["de", "en"], {"source_lang": "de", "target_lang": "en"}
    model = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 24, "position": "t5"}
    data = {"root": directory, "train": files, "valid": files} | languages
    sections = {"data": data, "model": model | {"tie_embeddings": tie}, "train": {"steps": 1}}
    recipe = Recipe.model_validate(sections)
    network = build(recipe.model.with_vocabulary(tokenizer.vocab_size), seed=0)
    Run(network, tokenizer, GenerationConfig(), recipe).save(directory / "run")
    write_examples(directory / "run", zip(GERMAN, ENGLISH, strict=True))
    return directory / "run"


def clouds(page: Path) -> dict[str, Any]:
    """The data of the scatter plot of embeddings."""
    blocks = Page(page.read_text()).data()
    (block,) = [data for data in blocks if isinstance(data, dict) and "near" in data]
    return block
