"""Tests of cli/terminology_file.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyhead.cli import main

LINES = ["ein hund bellt .", "zwei hunde", "", "EIN Hund", "a dog"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "input.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def test_terms_that_are_not_utf_8_are_refused(
    tiny: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "terms.tsv"
    file.write_bytes(b"dog\tHund\nman\tM\xe4nner\n")
    assert main(["translate", str(tiny), str(source), "--terminology", str(file)]) == 2
    assert f"--terminology: line 2 of {file} has characters that are not UTF-8" in capsys.readouterr().err


def test_a_file_that_is_not_there_or_is_the_text_is_told(
    tiny: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", str(tiny), str(source), "--terminology", "nowhere.tsv"]) == 2
    assert "no file 'nowhere.tsv'" in capsys.readouterr().err
    assert main(["translate", str(tiny), "-", "--terminology", "-"]) == 2
    assert (
        "--terminology: standard input is already used for the text; expected a file"
        in capsys.readouterr().err
    )
