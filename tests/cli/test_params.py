"""Tests of cli/params.py."""

from __future__ import annotations

import pytest

from polyhead.cli import main
from polyhead.config.presets import PRESET_INFO, PRESETS


def test_the_verb_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["params", "bert-base"]) == 0
    assert "layer                     85,054,464        12 x 7,087,872  12H² + 13H" in capsys.readouterr().out
    assert main(["params"]) == 0
    assert "bert-large         335,141,888       340M" in capsys.readouterr().out
    assert main(["params", "bert-bse"]) == 2
    assert "did you mean 'bert-base'" in capsys.readouterr().err
    assert main(["params", "mine.yaml"]) == 2
    assert (
        "mine.yaml is a recipe, not a preset or a run; polyhead estimate mine.yaml" in capsys.readouterr().err
    )
    assert set(PRESET_INFO) == set(PRESETS) - {"tiny"}
