"""Tests of compare/shared_setup.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compare.language_helpers import lm as lm
from tests.compare.plan_helpers import plan

from polyhead.compare.shared_setup import ensure_tokenizer
from polyhead.compare.sweep import Axis
from polyhead.run.recipe import load_recipe

OUT = Path("runs/compare-lm")


@pytest.mark.usefixtures("lm")
def test_every_share_of_the_text_has_a_tokenizer_of_its_own() -> None:
    made = {
        ensure_tokenizer(load_recipe("lm.yaml", changes), OUT)
        for changes in (
            [],
            ["data.valid=null", "data.valid_fraction=0.2"],
            ["data.document_separator=line"],
            [],
        )
    }
    assert len(made) == 3


def test_designs_of_other_files_need_a_validation_text_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "valid.txt"):
        Path(name).write_text("to be or not\n" * 9)
    data = "train: a.txt, valid_fraction: 0.1"
    Path("toy.yaml").write_text(f"task: language-model\ndata: {{{data}}}\ntrain: {{steps: 2}}\n")
    more = Axis("data.train", ("a.txt", "[a.txt, b.txt]"))
    base, both = plan(more).designs
    assert base.recipe is not None and both.recipe is None
    assert both.error.startswith("data.valid_fraction would hold out a different text than the base recipe")
    base, both = plan(more, changes=("data.valid_fraction=0", "data.valid=valid.txt")).designs
    assert both.recipe is not None and both.recipe.data.train == ["a.txt", "b.txt"]
