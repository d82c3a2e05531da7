"""Tests of train/tasks/seq2seq_common.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.train.conftest import Notes
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.rank_runs import recipe_of

from polyhead.checkpoint import checkpoint
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.train.run_training import run_training

pytestmark = pytest.mark.usefixtures("unsynced")


def refused(recipe: Recipe, message: str, **data: Any) -> None:
    """Before the first step, in a directory that nothing was learned in."""
    recipe, notes = recipe.model_copy(update={"data": recipe.data.model_copy(update=data)}), Notes()
    with pytest.raises(UserError, match=message):
        run_training(recipe, report=notes)
    assert notes.rows == []
    assert not checkpoint.list_steps(recipe.out / "checkpoints")


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"bad_words": ["<nuk>"]}, "generation.bad_words: no token '<nuk>' in the vocabulary"),
        ({"stop_tokens": ["<nuk>"]}, "generation.stop_tokens: no token '<nuk>' in the vocabulary"),
        ({"cache": Choice("state")}, "generation.cache: cache 'state' stores a recurrent state"),
        ({"cache": Choice("h2o", budget=1)}, "generation.cache: cache 'h2o': a budget of 1 tokens"),
        ({"cache": Choice("paged", block_size=0)}, "generation.cache: cache 'paged': block_size is 0"),
    ],
)
def test_settings_that_translations_are_refused_for_are_told_at_the_start(
    generation: dict[str, Any], message: str, place: Path
) -> None:
    recipe = recipe_of(place, "translation", "late-decoding")
    changed = GenerationConfig.model_validate(recipe.generation.model_dump() | generation)
    refused(recipe.model_copy(update={"generation": changed}), message)
