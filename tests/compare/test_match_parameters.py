import pytest
from tests.compare.compare_helpers import make_toy_plan

from polyhead.compare.cost_metrics import count_parameters
from polyhead.compare.plan import match_parameters
from polyhead.compare.sweep import DesignSpec

pytestmark = pytest.mark.usefixtures("workdir")


def match_one(change, count):
    return match_parameters(make_toy_plan(designs=(DesignSpec("x", (change,)),)), count).designs[1]


def count_with_vocabulary(recipe):
    return count_parameters(recipe, 280)


def test_d_ff_is_changed_for_equal_parameters():
    designs = (
        DesignSpec("gated", ("model.feed_forward=swiglu",)),
        DesignSpec("narrow", ("model.d_model=12",)),
        DesignSpec("huge", ("model.d_model=64",)),
        DesignSpec("equal", ("model.norm_first=true",)),
    )
    plan = make_toy_plan(designs=designs)
    designs = match_parameters(plan, count_with_vocabulary).designs
    n_base = count_with_vocabulary(plan.base)
    for design in designs[1:3]:
        assert abs(count_with_vocabulary(design.recipe) - n_base) <= 0.01 * n_base
        assert design.note == f"d_ff {design.recipe.model.d_ff} for equal parameters"
    assert designs[3].recipe == plan.designs[3].recipe
    assert designs[3].note.startswith("not matched, since that requires a d_ff below 1 (the base has 32): ")
    assert (designs[4].note, designs[4].recipe) == ("", plan.designs[4].recipe)


def test_blocks_without_d_ff_are_not_matched():
    assert match_one("model.d_ff=8", lambda recipe: recipe.model.d_ff or 0).recipe.model.d_ff == 32
    note = "not matched, since no block of it has a d_ff: 8 parameters against the base's 16 (-50.0%)"
    assert match_one("model.d_model=8", lambda recipe: recipe.model.d_model).note == note
    sizes = iter((1000, 1004, 1000))  # the row, the base, the row with another d_ff
    note = "nothing was matched, since no block of it has a d_ff: 1,000 parameters against the base's 1,004 "
    assert match_one("model.norm=rmsnorm", lambda recipe: next(sizes)).note == f"{note}(-0.4%)"
    plan = make_toy_plan(designs=(DesignSpec("lstm", ("model.block=lstm", "model.position=none")),))
    designs = match_parameters(plan, count_with_vocabulary).designs[1]
    n, n_base = (count_with_vocabulary(recipe) for recipe in (plan.designs[1].recipe, plan.base))
    assert designs.recipe == plan.designs[1].recipe
    assert (
        f"{n:,} parameters against the base's {n_base:,} ({100 * (n - n_base) / n_base:+.1f}%)"
        in designs.note
    )


LESS_THAN_HALF = ", less than half of the base's 32"
NOT_MATCHED = (
    "not matched, since that requires a d_ff {} (the base has 32): {} parameters against the base's 100"
)


@pytest.mark.parametrize(
    ("rest", "d_ff", "note"),
    [
        (60, 20, "d_ff 20 for equal parameters"),
        (70, 15, "d_ff 15 for equal parameters" + LESS_THAN_HALF),
        (84, 8, "d_ff 8 for equal parameters" + LESS_THAN_HALF),
        (86, 64, NOT_MATCHED.format("of 7", 214) + " (+114.0%)"),
        (100, 64, NOT_MATCHED.format("below 1", 228) + " (+128.0%)"),
    ],
)
def test_small_d_ff_has_note_or_no_match(rest, d_ff, note):
    """Parameters are 2 d_ff, and 36 of the base or ``rest`` of the design."""

    def count(recipe):
        return (36 if recipe.model.d_ff == 32 else rest) + 2 * recipe.model.d_ff

    design = match_one("model.d_ff=64", count)
    assert (design.recipe.model.d_ff, design.note) == (d_ff, note)
