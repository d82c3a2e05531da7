"""Tests of cli/export.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hf.save_helpers import saved

from polyhead.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "onxn"], "unknown format 'onxn'; did you mean 'onnx'?"),
        (["--family", "gtp2"], "unknown family 'gtp2'; did you mean 'gpt2'?"),
        (["--dtype", "int8"], "unknown dtype 'int8'"),
    ],
)
def test_a_mistake_at_the_verb_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"polyhead: {message}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["import", "export"])
def test_nothing_is_written_over(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "run")
    assert main([verb, str(tmp_path / "run"), str(tmp_path / "run")]) == 2
    assert "is not empty; choose another directory" in capsys.readouterr().err
