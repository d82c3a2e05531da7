from __future__ import annotations

import pytest

from polyhead.compare.sweep import (
    Axis,
    DesignSpec,
    expand_grid,
    read_axis,
    read_design,
    resolve_key,
    vary_one_axis,
)
from polyhead.core.errors import UserError


@pytest.mark.parametrize(
    ("typed", "key", "values"),
    [
        ("norm=layernorm,rmsnorm", "model.norm", ("layernorm", "rmsnorm")),
        ("model.norm=rmsnorm", "model.norm", ("rmsnorm",)),
        ("lr=1e-3, 1e-2", "train.lr", ("1e-3", "1e-2")),
        ("position.theta=1e4,5e5", "model.position.theta", ("1e4", "5e5")),
        ("schedule.warmup=10,20", "train.schedule.warmup", ("10", "20")),
        ("vocab_size=500,600", "tokenizer.vocab_size", ("500", "600")),
        ("preset=tiny,base", "model.preset", ("tiny", "base")),
        (
            "position=none,{name: rope, scaling: [a, b]},learned",
            "model.position",
            ("none", "{name: rope, scaling: [a, b]}", "learned"),
        ),
        ("norm='a,b',rmsnorm,rmsnorm", "model.norm", ("'a,b'", "rmsnorm")),
    ],
)
def test_an_axis_is_a_key_and_its_values(typed: str, key: str, values: tuple[str, ...]) -> None:
    assert read_axis(typed) == Axis(key, values)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("norm", "expected key=value,value"),
        ("=a,b", "expected key=value,value"),
        ("norm=a,,b", "a value is empty"),
        ("norm=", "a value is empty"),
        ("nrm=a", "--vary nrm: unknown key; did you mean 'norm'"),
        ("train.norm=a", "--vary train.norm: unknown key; did you mean 'model.norm'"),
        ("model.nrm=a", "unknown key; did you mean 'norm'"),
        ("qqqqqq=a", "polyhead train --keys lists all"),
        ("position={name: rope", "a bracket or quote is not closed"),
        ("seed=1,2", "compare sets train.seed itself; use --seeds"),
        ("steps=100,200", "use --budget"),
        (
            "best_metric=bleu,loss",
            "compare sets train.best_metric itself: the weights with the lowest loss are used",
        ),
        ("patience=2", "compare sets train.patience itself: designs do not stop early"),
        ("train.eval_bleu=true", "compare sets train.eval_bleu itself"),
        ("tensorboard=true", "compare sets train.tensorboard itself"),
        (
            "test=[a, b],[c, d]",
            "--vary test: designs are evaluated on the same text, which data.test changes",
        ),
        ("data.valid_fraction=0.1,0.2", "which data.valid_fraction changes"),
        ("label=fine", "which data.label changes"),
    ],
)
def test_a_mistake_in_an_axis_is_told(typed: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_axis(typed)


def test_a_design_is_a_name_and_several_changes() -> None:
    typed = "with  lstm: model.n_layers=1  position={name: rope, theta: 5e5} lr=1e-3"
    assert read_design(typed) == DesignSpec(
        "with lstm", ("model.n_layers=1", "model.position={name: rope, theta: 5e5}", "train.lr=1e-3")
    )


@pytest.mark.parametrize("typed", ["norm=rmsnorm", "name:", ": norm=rmsnorm", "a=b: norm=rmsnorm"])
def test_a_design_without_name_or_changes_is_refused(typed: str) -> None:
    with pytest.raises(UserError, match="expected 'name: key=value key=value'"):
        read_design(typed)


def test_a_change_of_a_design_that_is_none_is_named() -> None:
    with pytest.raises(UserError, match="--design x: 'rmsnorm' is not key=value"):
        read_design("x: norm=layernorm rmsnorm")


AXES = [
    Axis("model.norm", ("layernorm", "rmsnorm")),
    Axis("model.position", ("none", "{name: rope, theta: 5}")),
]


def test_one_at_a_time_changes_one_key() -> None:
    assert list(vary_one_axis(AXES)) == [
        DesignSpec("norm=layernorm", ("model.norm=layernorm",)),
        DesignSpec("norm=rmsnorm", ("model.norm=rmsnorm",)),
        DesignSpec("position=none", ("model.position=none",)),
        DesignSpec("position=rope(theta=5)", ("model.position={name: rope, theta: 5}",)),
    ]


def test_a_grid_is_every_combination_and_names_what_differs_from_the_base() -> None:
    found = list(expand_grid(AXES, lambda change: change in ("model.norm=layernorm", "model.position=none")))
    assert [design.name for design in found] == [
        "position=rope(theta=5)",
        "norm=rmsnorm",
        "norm=rmsnorm position=rope(theta=5)",
    ]
    assert found[2].changes == ("model.norm=rmsnorm", "model.position={name: rope, theta: 5}")


def test_the_same_key_twice_is_one_axis_of_the_grid() -> None:
    twice = [Axis("model.norm", ("layernorm",)), Axis("model.norm", ("rmsnorm",))]
    assert [design.changes for design in expand_grid(twice, lambda change: False)] == [
        ("model.norm=layernorm",),
        ("model.norm=rmsnorm",),
    ]


def test_every_bare_key_has_one_home() -> None:
    assert [resolve_key(key, "--vary") for key in ("max_len", "kind", "cache", "dropout")] == [
        "model.max_len",
        "model.kind",
        "generation.cache",
        "model.dropout",
    ]
