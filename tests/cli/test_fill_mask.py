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
