from __future__ import annotations

from pathlib import Path

import pytest

from polyhead.compare.budget import Budget, read_budget
from polyhead.compare.cost_metrics import count_parameters
from polyhead.compare.match_parameters import match_parameters
from polyhead.compare.plan import ComparisonPlan, make_plan
from polyhead.compare.step_budget import with_trial_schedule
from polyhead.compare.sweep import Axis, DesignSpec
from polyhead.compare.tasks.base import get_compared_task
from polyhead.config.recipe import Recipe, load_recipe
from polyhead.core.errors import UserError


def plan(
    *axes: Axis,
    designs: tuple[DesignSpec, ...] = (),
    changes: tuple[str, ...] = (),
    grid: bool = False,
    budget: str = "20steps",
) -> ComparisonPlan:
    return make_plan(
        Path("toy.yaml"),
        changes,
        axes,
        designs,
        full_grid=grid,
        budget=read_budget(budget),
        seeds=2,
        match=False,
        out=None,
    )


NORM = Axis("model.norm", ("layernorm", "rmsnorm"))


@pytest.mark.usefixtures("place")
def test_the_base_comes_first_and_equal_designs_are_one_row() -> None:
    same = DesignSpec("also rmsnorm", ("model.norm={name: rmsnorm}",))
    found = plan(
        NORM, Axis("model.norm_first", ("true", "false")), designs=(same,), changes=("model.d_ff=64",)
    )
    assert [row.name for row in found.designs] == ["base", "norm=rmsnorm", "norm_first=true"]
    assert found.designs[0].recipe == load_recipe("toy.yaml", ["model.d_ff=64", "out=runs/run"])
    assert found.designs[1].recipe == load_recipe(
        "toy.yaml", ["model.d_ff=64", "model.norm=rmsnorm", "out=runs/run"]
    )
    assert (found.seeds, found.out) == ((1, 2), Path("runs/compare-toy"))


@pytest.mark.usefixtures("place")
def test_a_part_that_is_as_it_would_be_anyway_is_no_other_design() -> None:
    spelled = (
        Axis("model.decoder_block", ("transformer", "lstm")),
        Axis("model.decoder_attention", ("softmax", "linear")),
        Axis("model.cross_attention", ("softmax",)),
        Axis("generation.cache", ("static", "growing")),
        Axis("model.preset", ("null",)),
    )
    names = ["base", "decoder_block=lstm", "decoder_attention=linear", "cache=growing"]
    assert [row.name for row in plan(*spelled).designs] == names
    turns = "model.pattern=[{attention: linear}, {}]"  # where the decoder's is not that of the layer
    assert [row.name for row in plan(*spelled[1:3], changes=(turns,)).designs][1:] == [
        "decoder_attention=softmax", "decoder_attention=linear", "cross_attention=softmax"
    ]  # fmt: skip
    bare = ("model.block={name: lstm, attention: false}", "model.position=none")
    names = [row.name for row in plan(spelled[3], changes=bare).designs]
    assert names == ["base", "cache=static", "cache=growing"]  # which are refused when they are tried


@pytest.mark.usefixtures("place")
def test_a_grid_holds_every_combination_once() -> None:
    found = plan(NORM, Axis("model.norm_first", ("true", "false")), grid=True)
    assert [row.name for row in found.designs] == [
        "base",
        "norm_first=true",
        "norm=rmsnorm norm_first=true",
        "norm=rmsnorm",
    ]
    assert len({str(row.recipe) for row in found.designs}) == 4


@pytest.mark.usefixtures("place")
def test_a_combination_that_does_not_work_is_a_row_with_the_reason() -> None:
    found = plan(Axis("model.n_heads", ("2", "3")))
    assert [(row.name, row.recipe is None) for row in found.designs] == [("base", False), ("n_heads=3", True)]
    assert found.designs[1].error.startswith(
        "model: d_model (16) must be divisible by n_heads (3); the nearest is 15"
    )


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (Axis("model.norm", ("rmsnrm",)), "model.norm: unknown norm 'rmsnrm'; did you mean 'rmsnorm'"),
        (
            Axis("model.norm", ("{name: rmsnorm, ep: 1}",)),
            "model.norm: norm 'rmsnorm' has no option 'ep'",
        ),
        (Axis("model.d_ff", ("-3",)), "model.d_ff: -3 is out of range"),
        (Axis("model.d_ff", ("[1",)), "d_ff=.1: line 1, column 1: a bracket"),
    ],
)
def test_a_value_that_is_wrong_anywhere_is_a_mistake(axis: Axis, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(axis)


@pytest.mark.usefixtures("place")
def test_two_designs_may_not_share_a_name() -> None:
    designs = (DesignSpec("x", ("model.d_ff=8",)), DesignSpec("x", ("model.d_ff=16",)))
    with pytest.raises(UserError, match="two designs are called 'x'"):
        plan(designs=designs)


@pytest.mark.usefixtures("place")
def test_every_design_has_a_directory_of_its_own() -> None:
    designs = (
        DesignSpec("a b", ("model.d_ff=8",)),
        DesignSpec("a/b", ("model.d_ff=16",)),
        DesignSpec("x" * 300, ("model.d_ff=24",)),
    )
    slugs = [row.slug for row in plan(NORM, designs=designs).designs]
    assert len(set(slugs)) == 5
    assert slugs[:2] == ["base", "norm=rmsnorm"]
    assert all("/" not in slug and len(slug) < 100 for slug in slugs)


@pytest.mark.usefixtures("place")
def test_the_place_follows_from_the_recipe(place: Path) -> None:
    assert plan(changes=("out=runs/mine",)).out == Path("runs/mine")
    (place / "runs/old").mkdir(parents=True)
    (place / "runs/old/recipe.yaml").write_text(load_recipe("toy.yaml", ["out=runs/old"]).dump_yaml())
    found = make_plan(
        Path("runs/old/recipe.yaml"),
        (),
        (),
        (),
        full_grid=False,
        budget=Budget("recipe"),
        seeds=1,
        match=False,
        out=None,
    )
    assert found.out == Path("runs/compare-old"), "the directory of the run itself stays as it is"


@pytest.mark.usefixtures("place")
def test_a_warm_up_that_fills_the_budget_is_told() -> None:
    assert plan(budget="6steps").designs[0].note == "the warm-up (4 steps) is more than half of the 6 steps"
    assert plan(budget="8steps").designs[0].note == ""


@pytest.mark.usefixtures("place")
def test_a_peak_given_to_a_schedule_that_wants_a_factor_is_told() -> None:
    noam = ("train.schedule={name: noam, warmup: 4}", "train.lr=0.001")
    assert (
        plan(changes=noam, budget="8steps").designs[0].note.startswith("train.lr is 0.001, and schedule noam")
    )
    assert "; train.lr is" in plan(changes=noam, budget="6steps").designs[0].note


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("steps", [1, 2, 7, 15, 16, 29, 100, 4321, 100_000])
def test_a_cell_is_evaluated_about_fifteen_times_and_right_after_a_tick_of_the_clock(steps: int) -> None:
    train = with_trial_schedule(load_recipe("toy.yaml"), steps).train
    points = steps // train.eval_every
    assert points == steps if steps < 15 else 15 <= points <= 29
    assert train.eval_every % train.log_every == 0
    assert (train.steps, train.epochs, train.patience, train.eval_bleu) == (steps, None, None, False)
    Recipe.model_validate(with_trial_schedule(load_recipe("toy.yaml"), steps).model_dump())


@pytest.mark.usefixtures("place")
def test_averaged_checkpoints_lie_in_the_same_share_of_the_steps() -> None:
    recipe = load_recipe(
        "toy.yaml", ["train.steps=11000", "train.save_every=250", "train.average=10", "train.keep=10"]
    )
    train = with_trial_schedule(recipe, 2200).train
    assert (train.save_every, train.average, train.keep) == (50, 10, 10)


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
        "not matched, since that takes a d_ff below 1 (the base has 32): "
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
        "nothing was matched, since no block of it has a d_ff: 1,000 parameters against the base's 1,004 (-0.4%)"
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
        (86, 64, "not matched, since that takes a d_ff of 7 (the base has 32): 214 parameters against the base's 100 (+114.0%)"),
        (100, 64, "not matched, since that takes a d_ff below 1 (the base has 32): 228 parameters against the base's 100 (+128.0%)"),
    ],
)  # fmt: skip
def test_a_narrow_match_is_pointed_out_and_a_silly_one_refused(rest: int, d_ff: int, note: str) -> None:
    def count(recipe: Recipe) -> int:
        return (36 if recipe.model.d_ff == 32 else rest) + 2 * (recipe.model.d_ff or 0)

    found = match_parameters(plan(designs=(DesignSpec("x", ("model.d_ff=64",)),)), count).designs[1]
    assert found.recipe is not None
    assert (found.recipe.model.d_ff, found.note) == (d_ff, note)


@pytest.mark.usefixtures("place")
def test_a_task_that_nobody_compares_yet_is_refused_by_name() -> None:
    known = "designs are compared by these tasks: chat, classification, "
    with pytest.raises(UserError, match=f"task is 'dreams'; {known}"):
        get_compared_task("dreams")


@pytest.mark.usefixtures("place")
def test_parameters_are_counted_as_the_built_model_has_them() -> None:
    from polyhead.models import build

    recipe = load_recipe("toy.yaml")
    model = build(recipe.model.with_vocabulary(280), 1)
    assert count_parameters(recipe, 280) == sum(p.numel() for p in model.parameters())


def test_designs_of_other_files_need_a_validation_text_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "valid.txt"):
        Path(name).write_text("to be or not\n" * 9)
    data = "train: a.txt, valid_share: 0.1"
    Path("toy.yaml").write_text(f"task: language-model\ndata: {{{data}}}\ntrain: {{steps: 2}}\n")
    more = Axis("data.train", ("a.txt", "[a.txt, b.txt]"))
    base, both = plan(more).designs
    assert base.recipe is not None and both.recipe is None
    assert both.error.startswith("data.valid_share would hold out another text than the base's")
    base, both = plan(more, changes=("data.valid_share=0", "data.valid=valid.txt")).designs
    assert both.recipe is not None and both.recipe.data.train == ["a.txt", "b.txt"]
