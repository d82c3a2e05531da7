from pathlib import Path

import pytest
from tests.compare.compare_helpers import make_toy_plan

from polyhead.compare.cost_metrics import count_parameters
from polyhead.compare.plan import Design
from polyhead.compare.sweep import Axis, DesignSpec
from polyhead.core.errors import UserError
from polyhead.models import build
from polyhead.run.recipe import load_recipe

NORM = Axis("model.norm", ("layernorm", "rmsnorm"))
NORM_FIRST = Axis("model.norm_first", ("true", "false"))
pytestmark = pytest.mark.usefixtures("workdir")


def list_names(plan):
    return [design.name for design in plan.designs]


def test_base_is_first_and_equal_designs_are_merged():
    duplicate = DesignSpec("also rmsnorm", ("model.norm={name: rmsnorm}",))
    plan = make_toy_plan(NORM, NORM_FIRST, designs=(duplicate,), changes=("model.d_ff=64",))
    assert list_names(plan) == ["base", "norm=rmsnorm", "norm_first=true"]
    changes = ["model.d_ff=64", "out=runs/run"]
    recipes = [load_recipe("toy.yaml", [*changes, *c]) for c in ([], ["model.norm=rmsnorm"])]
    assert [design.recipe for design in plan.designs[:2]] == recipes
    assert (plan.seeds, plan.out) == ((1, 2), Path("runs/compare-toy"))
    assert Design("base", (), None).is_base
    assert not Design("x", ("model.d_ff=8",), None).is_base


def test_explicit_default_is_not_another_design():
    axes = (
        Axis("model.decoder_block", ("transformer", "lstm")),
        Axis("model.decoder_attention", ("softmax", "linear")),
        Axis("model.cross_attention", ("softmax",)),
        Axis("generation.cache", ("static", "growing")),
        Axis("model.preset", ("null",)),
    )
    names = ["base", "decoder_block=lstm", "decoder_attention=linear", "cache=growing"]
    assert list_names(make_toy_plan(*axes)) == names
    pattern = "model.layer_pattern=[{attention: linear}, {}]"  # the decoder's is not that of the layer
    names = ["decoder_attention=softmax", "decoder_attention=linear", "cross_attention=softmax"]
    assert list_names(make_toy_plan(*axes[1:3], changes=(pattern,)))[1:] == names
    changes = ("model.block={name: lstm, attention: false}", "model.position=none")
    plan = make_toy_plan(axes[3], changes=changes)
    assert list_names(plan) == ["base", "cache=static", "cache=growing"]  # their trials are refused


def test_grid_has_every_combination_once():
    plan = make_toy_plan(NORM, NORM_FIRST, grid=True)
    names = ["base", "norm_first=true", "norm=rmsnorm norm_first=true", "norm=rmsnorm"]
    assert list_names(plan) == names
    assert len({str(design.recipe) for design in plan.designs}) == 4
    # an invalid one is a row with its reason
    base, invalid = make_toy_plan(Axis("model.n_heads", ("2", "3"))).designs
    assert (base.name, invalid.name, invalid.recipe) == ("base", "n_heads=3", None)
    message = "model: d_model (16) must be divisible by n_heads (3); the nearest is 15"
    assert invalid.error.startswith(message)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("norm", "rmsnrm", "model.norm: unknown norm 'rmsnrm'; did you mean 'rmsnorm'"),
        ("norm", "{name: rmsnorm, ep: 1}", "model.norm: norm 'rmsnorm' has no option 'ep'"),
        ("d_ff", "-3", "model.d_ff: -3 is out of range"),
        ("d_ff", "[1", "d_ff=.1: line 1, column 1: unclosed bracket"),
    ],
)
def test_invalid_value_or_name_is_an_error(key, value, message):
    with pytest.raises(UserError, match=message):
        make_toy_plan(Axis(f"model.{key}", (value,)))
    designs = (DesignSpec("x", ("model.d_ff=8",)), DesignSpec("x", ("model.d_ff=16",)))
    with pytest.raises(UserError, match="two designs are named 'x'"):
        make_toy_plan(designs=designs)


def test_directories_of_designs_and_comparison(workdir):
    designs = [DesignSpec(name, (f"model.d_ff={8 + i}",)) for i, name in enumerate(("a b", "a/b", "x" * 300))]
    slugs = [design.slug for design in make_toy_plan(NORM, designs=tuple(designs)).designs]
    assert len(set(slugs)) == 5
    assert slugs[:2] == ["base", "norm=rmsnorm"]
    assert all("/" not in slug and len(slug) < 100 for slug in slugs)
    assert make_toy_plan(changes=("out=runs/mine",)).out == Path("runs/mine")
    (workdir / "runs/old").mkdir(parents=True)
    (workdir / "runs/old/recipe.yaml").write_text(load_recipe("toy.yaml", ["out=runs/old"]).dump_yaml())
    plan = make_toy_plan(recipe="runs/old/recipe.yaml", budget=None)
    assert plan.out == Path("runs/compare-old"), "the directory of the run itself is not used"


def test_note_on_warm_up_and_learning_rate():
    assert make_toy_plan(budget="8steps").designs[0].note == ""
    warm_up = "the warm-up (4 steps) is more than half of the 6 steps"
    assert make_toy_plan(budget="6steps").designs[0].note == warm_up
    noam = ("train.schedule={name: noam, warmup: 4}", "train.lr=0.001")
    note = "train.lr is 0.001, and schedule noam"
    assert make_toy_plan(changes=noam, budget="8steps").designs[0].note.startswith(note)
    assert "; train.lr is" in make_toy_plan(changes=noam, budget="6steps").designs[0].note


def test_parameters_are_counted_as_in_built_model():
    recipe = load_recipe("toy.yaml")
    model = build(recipe.model.with_vocabulary(280), 1)
    assert count_parameters(recipe, 280) == sum(p.numel() for p in model.parameters())
