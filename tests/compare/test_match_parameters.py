"""Tests of compare/match_parameters.py."""

from __future__ import annotations

import pytest
from tests.compare.plan_helpers import plan

from polyhead.compare.cost_metrics import count_parameters
from polyhead.compare.match_parameters import match_parameters
from polyhead.compare.sweep import DesignSpec
from polyhead.config.recipe import Recipe


@pytest.mark.usefixtures("place")
def test_parameters_are_matched_by_d_ff() -> None:
    designs = (
        DesignSpec("gated", ("model.feed_forward=swiglu",)),
        DesignSpec("narrow", ("model.d_model=12",)),
        DesignSpec("huge", ("model.d_model=64",)),
        DesignSpec("equal", ("model.norm_first=true",)),
    )
    before = plan(designs=designs)
    found = match_parameters(before, lambda recipe: count_parameters(recipe, 280))
    wanted = count_parameters(before.base, 280)
    for row in found.designs[1:3]:
        assert row.recipe is not None
        assert abs(count_parameters(row.recipe, 280) - wanted) <= 0.01 * wanted
        assert row.note == f"d_ff {row.recipe.model.d_ff} for equal parameters"
    assert found.designs[3].recipe == before.designs[3].recipe
    assert found.designs[3].note.startswith(
        "not matched, since that requires a d_ff below 1 (the base has 32): "
    )
    assert (found.designs[4].note, found.designs[4].recipe) == ("", before.designs[4].recipe)


@pytest.mark.usefixtures("place")
def test_parameters_that_d_ff_does_not_change_cannot_be_matched() -> None:
    found = match_parameters(
        plan(designs=(DesignSpec("x", ("model.d_ff=8",)),)), lambda recipe: recipe.model.d_ff or 0
    )
    assert found.designs[1].recipe is not None
    assert found.designs[1].recipe.model.d_ff == 32
    stuck = match_parameters(
        plan(designs=(DesignSpec("x", ("model.d_model=8",)),)), lambda recipe: recipe.model.d_model
    )
    assert stuck.designs[1].note == (
        "not matched, since no block of it has a d_ff: 8 parameters against the base's 16 (-50.0%)"
    )


@pytest.mark.usefixtures("place")
def test_blocks_without_d_ff_that_happen_to_be_as_large_say_so_too() -> None:
    sizes = iter((1000, 1004, 1000))  # the row, the base, the row with another d_ff
    found = match_parameters(
        plan(designs=(DesignSpec("x", ("model.norm=rmsnorm",)),)), lambda recipe: next(sizes)
    )
    assert found.designs[1].note == (
        "nothing was matched, since no block of it has a d_ff: 1,000 parameters against the base's 1,004 "
        "(-0.4%)"
    )


@pytest.mark.usefixtures("place")
def test_blocks_without_d_ff_are_not_matched_and_say_so() -> None:
    before = plan(designs=(DesignSpec("lstm", ("model.block=lstm", "model.position=none")),))
    found = match_parameters(before, lambda recipe: count_parameters(recipe, 280)).designs[1]
    has, wanted = (
        count_parameters(recipe, 280) for recipe in (before.designs[1].recipe, before.base) if recipe
    )
    assert found.recipe == before.designs[1].recipe
    assert found.note == (
        f"not matched, since no block of it has a d_ff: {has:,} parameters against the base's {wanted:,} "
        f"({100 * (has - wanted) / wanted:+.1f}%)"
    )


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("rest", "d_ff", "note"),
    [
        (60, 20, "d_ff 20 for equal parameters"),
        (70, 15, "d_ff 15 for equal parameters, less than half of the base's 32"),
        (84, 8, "d_ff 8 for equal parameters, less than half of the base's 32"),
        (86, 64, "not matched, since that requires a d_ff of 7 (the base has 32): 214 parameters against "
                "the base's 100 (+114.0%)"),
        (100, 64, "not matched, since that requires a d_ff below 1 (the base has 32): 228 parameters against "
                "the base's 100 (+128.0%)"),
    ],
)  # fmt: skip
def test_a_narrow_match_is_pointed_out_and_a_silly_one_refused(rest: int, d_ff: int, note: str) -> None:
    def count(recipe: Recipe) -> int:
        return (36 if recipe.model.d_ff == 32 else rest) + 2 * (recipe.model.d_ff or 0)

    found = match_parameters(plan(designs=(DesignSpec("x", ("model.d_ff=64",)),)), count).designs[1]
    assert found.recipe is not None
    assert (found.recipe.model.d_ff, found.note) == (d_ff, note)
