"""Shared by the tests of demo_run."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
from safetensors.torch import load_file

from polyhead.cli import demo_run


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to stand in, and a demo of a second or two."""
    settings = deepcopy(demo_run.SETTINGS)
    settings["tokenizer"]["vocab_size"] = 300
    settings["model"] |= {"d_model": 32, "n_layers": 2, "n_heads": 2}
    settings["train"] |= {"steps": 4, "max_tokens": 512, "log_every": 2, "eval_every": 2, "save_every": 2}
    monkeypatch.setattr(demo_run, "SETTINGS", settings)
    monkeypatch.setattr(demo_run, "CORPUS_SIZES", {"n": 300, "n_valid": 20, "n_test": 20})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(run: str = "runs/demo") -> dict[str, list[float]]:
    """What they are."""
    return {name: w.flatten().tolist() for name, w in load_file(Path(run) / "model.safetensors").items()}
