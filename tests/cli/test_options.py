"""Tests of cli/options.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from polyhead.cli import main

LINES = ["ein hund bellt .", "zwei hunde", "", "hund hund hund", "  ", "a"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "input.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def test_missing_files_and_runs_name_the_nearest(
    tiny: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", str(tiny), str(source.with_name("inptu.txt"))]) == 2
    assert capsys.readouterr().err.endswith("did you mean 'input.txt'?\n")
    assert main(["translate", str(tiny.with_name("tny")), str(source)]) == 2
    assert capsys.readouterr().err.endswith(f"did you mean '{tiny}'?\n")


def test_a_directory_of_runs_names_them(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"polyhead: {tmp_path} is not a run directory: it has no config.json"
    assert main(["translate", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{said}; polyhead train creates runs\n"
    for name in ("second", "first"):
        shutil.copytree(tiny, tmp_path / name)
    assert main(["translate", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{said}; subdirectories that have one: first, second\n"
