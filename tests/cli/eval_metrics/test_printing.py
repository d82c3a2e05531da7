"""Tests of cli/eval_metrics/printing.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.eval_baselines_helpers import KINDS, card, recipe_of
from tests.cli.eval_baselines_helpers import moved as moved
from tests.cli.eval_baselines_helpers import place as place
from tests.train.conftest import Notes

from polyhead.cli import main
from polyhead.core.i18n import set_language
from polyhead.train.run_training import run_training


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_so_where_it_has_not_learned(kind: str, place: Path) -> None:
    facts = card(place / kind)
    assert "baseline" in facts["verdict"]
    names = list(facts)
    for name in names:
        if name.endswith(" baseline"):
            assert names[names.index(name) - 1] == name.removesuffix(" baseline")


def test_one_that_has_learned_is_told_no_verdict(place: Path, tmp_path: Path) -> None:
    recipe = recipe_of(
        place, "classification", steps=80, lr=1e-2, eval_every=40, schedule={"name": "cosine", "warmup": 5}
    )
    run_training(recipe.model_copy(update={"out": tmp_path / "learned"}), report=Notes())
    facts = card(tmp_path / "learned")
    assert float(facts["test accuracy"]) > float(facts["test accuracy baseline"].split()[0])
    assert "verdict" not in facts


def test_it_is_said_in_chinese(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(["--lang", "zh", "eval", str(moved / "classification"), str(moved / "test.tsv")]) == 0
    finally:
        set_language(None)
    told = capsys.readouterr()
    assert "（" not in told.out and "基线 " in told.out and "多数类" in told.out
    assert "模型还没有学会胜过多数类" in told.err
