"""Shared by the tests of demo and demo_run: a demo that takes a second."""

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from pathlib import Path

import pytest
from safetensors.torch import load_file

from polyhead.cli import demo_run, main

REPORT = Path("runs/demo/report.html")


@contextmanager
def small_demo(directory: Path) -> Iterator[None]:
    """Run the demo in a directory, with a small model, few pairs and four steps."""
    settings = deepcopy(demo_run.SETTINGS)
    settings["tokenizer"]["vocab_size"] = 300
    settings["model"] |= {"d_model": 16, "n_layers": 1, "n_heads": 2}
    settings["generation"] |= {"max_length_ratio": 0.2, "max_length_extra": 2}
    settings["train"] |= {"steps": 4, "max_tokens": 512, "log_every": 2, "eval_every": 2, "save_every": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_run, "SETTINGS", settings)
        patch.setattr(demo_run, "CORPUS_SIZES", {"n": 200, "n_valid": 8, "n_test": 8})
        patch.chdir(directory)
        yield


@pytest.fixture
def workdir(tmp_path: Path) -> Iterator[Path]:
    """An empty working directory in which the demo is small."""
    with small_demo(tmp_path):
        yield tmp_path


@pytest.fixture(scope="module")
def trained_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with runs/demo of a finished small demo, and what it printed in out.txt and err.txt."""
    directory, out, err = tmp_path_factory.mktemp("demo"), io.StringIO(), io.StringIO()
    with small_demo(directory), redirect_stdout(out), redirect_stderr(err):
        assert main(["demo"]) == 0
    (directory / "out.txt").write_text(out.getvalue())
    (directory / "err.txt").write_text(err.getvalue())
    return directory


@pytest.fixture
def finished(trained_demo: Path, workdir: Path) -> Path:
    """A working directory with a copy of the finished demo."""
    shutil.copytree(trained_demo / "runs", workdir / "runs")
    return workdir


def weights(run: str = "runs/demo") -> dict[str, list[float]]:
    tensors = load_file(Path(run) / "model.safetensors")
    return {name: tensor.flatten().tolist() for name, tensor in tensors.items()}
