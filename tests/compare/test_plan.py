from __future__ import annotations

from pathlib import Path

import pytest
from tests.compare.plan_helpers import plan

from polyhead.compare.budget import Budget
from polyhead.compare.cost_metrics import count_parameters
from polyhead.compare.plan import Design, make_plan
from polyhead.compare.sweep import Axis, DesignSpec
from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe

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
    turns = "model.layer_pattern=[{attention: linear}, {}]"  # where the decoder's is not that of the layer
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
        (Axis("model.d_ff", ("[1",)), "d_ff=.1: line 1, column 1: unclosed bracket"),
    ],
)
def test_a_value_that_is_wrong_anywhere_is_a_mistake(axis: Axis, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(axis)


@pytest.mark.usefixtures("place")
def test_two_designs_may_not_share_a_name() -> None:
    designs = (DesignSpec("x", ("model.d_ff=8",)), DesignSpec("x", ("model.d_ff=16",)))
    with pytest.raises(UserError, match="two designs are named 'x'"):
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
def test_parameters_are_counted_as_the_built_model_has_them() -> None:
    from polyhead.models import build

    recipe = load_recipe("toy.yaml")
    model = build(recipe.model.with_vocabulary(280), 1)
    assert count_parameters(recipe, 280) == sum(p.numel() for p in model.parameters())


def test_a_row_knows_what_it_is() -> None:
    assert Design("base", (), None).is_base
    assert not Design("x", ("model.d_ff=8",), None).is_base
