"""Tests of cli/output_file.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyhead.cli import main

LINES = ["ein hund bellt .", "zwei hunde", "", "hund hund hund", "  ", "a"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "input.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def translated(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    assert main(["translate", *map(str, arguments)]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\n") or not out
    return out.removesuffix("\n").split("\n") if out else []


@pytest.mark.parametrize("options", [["--n-best", "2", "--scores"], ["--read-batch", "2"]])
def test_a_file_has_what_standard_output_would(
    options: list[str], tiny: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = translated(capsys, tiny, source, *options)
    out = tmp_path / "new" / "out.txt"
    assert translated(capsys, tiny, source, *options, "--output", out) == []
    assert out.read_text().split("\n") == [*wanted, ""]
    assert [path.name for path in out.parent.iterdir()] == ["out.txt"]
    for place, said in (
        (source, "is an input"),
        (tiny / "config.json", "is an input"),
        (tmp_path, "is a directory"),
    ):
        assert main(["translate", str(tiny), str(source), "--output", str(place)]) == 2
        assert f"--output {place} {said}" in capsys.readouterr().err
