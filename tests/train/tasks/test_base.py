"""Tests of train/tasks/base.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.train.conftest import Notes, small_recipe

from polyhead.core.errors import UserError
from polyhead.train.run_training import run_training

pytestmark = pytest.mark.usefixtures("unsynced")


def test_that_most_pairs_are_left_out_is_a_warning_with_the_key_and_that_all_are_an_error(
    corpus: Path,
) -> None:
    for side in ("de", "en"):
        with (corpus / f"train.{side}").open("a") as file:
            file.write(f"{'hund ' * 60}\n" * 60)
    recipe, notes = small_recipe(corpus, steps=1, max_tokens=400), Notes()  # max_len 32
    run_training(recipe, report=notes)
    (said,) = (line for line in notes.said if line.startswith("warning"))
    assert said == (
        "warning: train.de + train.en: 40 of 100 are used, the others are skipped; 60 are longer than 32 "
        "tokens: raise model.max_len, or split them"
    )
    for side in ("de", "en"):
        (corpus / f"train.{side}").write_text(f"{'hund ' * 60}\n" * 60)
    with pytest.raises(UserError, match=r"no usable pair in train.de \+ train.en: 0 of 60 pairs; skipped 60"):
        run_training(recipe.model_copy(update={"out": corpus / "none"}), report=Notes())
