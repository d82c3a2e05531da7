"""Tests of cli/fill_mask.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.evaluate.fill_mask_helpers import place as place
from tests.evaluate.fill_mask_helpers import run as run

from polyhead.cli import main
from polyhead.run.run import Run


def test_fill_mask_in_the_shell(place: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    text = "the <mask> sat on [MASK] mat"
    assert main(["fill-mask", str(place), text, "--top", "2"]) == 0
    lines = [
        f"{f.probability:.4f}\t{f.token}\t{f.text}\n" for fills in run.fill_mask([text], 2)[0] for f in fills
    ]
    assert (shown := capsys.readouterr().out) == "".join([*lines[:2], "\n", *lines[2:], "\n"])
    out = place.parent / "filled.txt"
    assert main(["fill-mask", str(place), text, "--top", "2", "--output", str(out)]) == 0
    assert (capsys.readouterr().out, out.read_text()) == ("", shown)
    assert main(["fill-mask", str(place), "no mask here"]) == 2
    assert capsys.readouterr().err == "polyhead: line 1 has no mask; put <mask> in place of a word\n"


def test_lines_that_cannot_be_filled_are_named(
    place: Path, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    most, text = run.config.max_len, "the <mask> sat"
    (tmp_path / "a.txt").write_text(f"{text}\nsat\n\n<mask>{' the' * 500}\n{text}\n")
    for chunk in ("2", "64"):
        assert (
            main(["fill-mask", str(place), str(tmp_path / "a.txt"), "--top", "1", "--read-batch", chunk]) == 0
        )
        out, err = capsys.readouterr()
        ((fill,),) = run.fill_mask([text], 1)[0]
        answer = f"{fill.probability:.4f}\t{fill.token}\t{fill.text}\n\n"
        assert out == f"{answer}\n\n\n{answer}"
        lines = err.splitlines()
        no_mask = "no mask; put <mask> in place of a word; its output is blank"
        assert lines[:2] == [f"polyhead: line {number}: {no_mask}" for number in (2, 3)]
        assert lines[2].startswith("polyhead: line 4: ")
        assert f" tokens, the model's maximum is {most - 2}; its output is blank" in lines[2]
