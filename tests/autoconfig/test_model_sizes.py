"""Tests of autoconfig/model_sizes.py."""

from __future__ import annotations

import pytest

from polyhead.autoconfig.inspect_data import DataSummary
from polyhead.autoconfig.propose_recipe import LABELED_SIZES, PAIR_SIZES, TEXT_SIZES, propose_recipe
from polyhead.run.recipe import validate_recipe


@pytest.mark.parametrize(
    ("task", "sizes", "sides"),
    [
        ("translation", PAIR_SIZES, 2),
        ("language-model", TEXT_SIZES, 1),
        ("masked-lm", TEXT_SIZES, 1),
        ("classification", LABELED_SIZES, 1),
    ],
)
def test_more_text_is_given_a_larger_model_and_so_many_passes(task, sizes, sides):
    parameters: list[int] = []
    for size in sizes:
        bytes_ = min(size.max_bytes, 1e11)
        found = DataSummary(task, {"train": ["a"], "valid_fraction": 0.1}, 1000, int(bytes_), [80] * 1000)
        tree = propose_recipe(found)
        recipe = validate_recipe(tree)
        model, train = recipe.model, recipe.train
        assert train.steps is not None
        parameters.append(model.n_layers * model.d_model**2)
        passes = train.steps * train.max_tokens / (bytes_ / 4 / sides)
        assert passes == pytest.approx(size.epochs, rel=0.06)
        assert train.schedule.options["warmup"] < train.steps / 2
        assert train.eval_every <= train.steps
        assert recipe.data.max_len >= 80 / 4 * 1.5
    assert parameters == sorted(parameters)
