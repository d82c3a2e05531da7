import gzip
from pathlib import Path

import numpy as np
import pytest

from polyhead.config.recipe import Recipe
from polyhead.estimate import inputs
from polyhead.estimate.plan import estimate

MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "max_len": 256}
TRAIN = {"epochs": 1, "max_tokens": 1024, "precision": "fp32"}
WORDS = "the a cat dog bird fish sees eats likes hates red blue big small now here there very old new"


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inputs, "_MAX_SPLIT_BYTES", 40_000)
    return tmp_path


def make_lines(n, min_words=4, max_words=9, seed=1):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS.split(), rng.integers(min_words, max_words))) for _ in range(n)]


def write_lines(name, lines):
    content = "".join(f"{line}\n" for line in lines).encode()
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def make_recipe(task, train, valid, **sections):
    data = {"train": train, "valid": valid, "max_len": 32} | sections.pop("data", {})
    tree = {"task": task, "data": data, "tokenizer": {"kind": "char"}, "model": MODEL, "train": TRAIN}
    return Recipe.model_validate(tree | sections)


def estimate_both(recipe, monkeypatch):
    sample = estimate(recipe, probe=False)
    with monkeypatch.context() as patch:
        patch.setattr(inputs, "_MAX_SPLIT_BYTES", 1 << 30)
        return sample, estimate(recipe, probe=False)


def assert_close(sample, full):
    """The plan of the sample is nearly that of the full text, and has a note that it is extrapolated."""
    assert sample.text["looked_at"] < 0.5 < full.text["looked_at"] == 1
    assert any("extrapolated" in note for note in sample.notes)
    for name in ("bytes", "lines"):
        assert sample.text[name] == full.text[name]
    for name in ("batches", "steps", "labels"):
        assert getattr(sample, name) == pytest.approx(getattr(full, name), rel=0.1)
