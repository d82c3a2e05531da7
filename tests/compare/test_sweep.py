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

ROPE = "{name: rope, theta: 5}"
AXES = [Axis("model.norm", ("layernorm", "rmsnorm")), Axis("model.position", ("none", ROPE))]


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("norm=layernorm,rmsnorm", "model.norm", ("layernorm", "rmsnorm")),
        ("model.norm=rmsnorm", "model.norm", ("rmsnorm",)),
        ("lr=1e-3, 1e-2", "train.lr", ("1e-3", "1e-2")),
        ("position.theta=1e4,5e5", "model.position.theta", ("1e4", "5e5")),
        ("schedule.warmup=10,20", "train.schedule.warmup", ("10", "20")),
        ("vocab_size=500,600", "tokenizer.vocab_size", ("500", "600")),
        (
            "position=none,{name: rope, scaling: [a, b]}",
            "model.position",
            ("none", "{name: rope, scaling: [a, b]}"),
        ),
        ("norm='a,b',rmsnorm,rmsnorm", "model.norm", ("'a,b'", "rmsnorm")),
    ],
)
def test_read_axis(text, key, values):
    assert read_axis(text) == Axis(key, values)


@pytest.mark.parametrize(
    ("text", "message"),
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
        ("best_metric=bleu,loss", "compare sets train.best_metric itself: the weights with the lowest loss"),
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
@pytest.mark.whole
def test_invalid_axis_is_an_error(text, message):
    with pytest.raises(UserError, match=message):
        read_axis(text)


def test_read_design():
    text = "with  lstm: model.n_layers=1  position={name: rope, theta: 5e5} lr=1e-3"
    changes = ("model.n_layers=1", "model.position={name: rope, theta: 5e5}", "train.lr=1e-3")
    assert read_design(text) == DesignSpec("with lstm", changes)
    for invalid in ("norm=rmsnorm", "name:", ": norm=rmsnorm", "a=b: norm=rmsnorm"):
        with pytest.raises(UserError, match="expected 'name: key=value key=value'"):
            read_design(invalid)
    with pytest.raises(UserError, match="--design x: 'rmsnorm' is not key=value"):
        read_design("x: norm=layernorm rmsnorm")


def test_vary_one_axis_changes_one_key():
    assert list(vary_one_axis(AXES)) == [
        DesignSpec("norm=layernorm", ("model.norm=layernorm",)),
        DesignSpec("norm=rmsnorm", ("model.norm=rmsnorm",)),
        DesignSpec("position=none", ("model.position=none",)),
        DesignSpec("position=rope(theta=5)", (f"model.position={ROPE}",)),
    ]


def test_grid_names_differences_from_base():
    designs = list(
        expand_grid(AXES, lambda change: change in ("model.norm=layernorm", "model.position=none"))
    )
    names = ["position=rope(theta=5)", "norm=rmsnorm", "norm=rmsnorm position=rope(theta=5)"]
    assert [design.name for design in designs] == names
    assert designs[2].changes == ("model.norm=rmsnorm", f"model.position={ROPE}")
    # a key that is given twice is one axis
    axes = [Axis("model.norm", ("layernorm",)), Axis("model.norm", ("rmsnorm",))]
    changes = [design.changes for design in expand_grid(axes, lambda change: False)]
    assert changes == [("model.norm=layernorm",), ("model.norm=rmsnorm",)]


def test_resolve_key_without_section():
    for section, key in (
        ("model", "max_len"),
        ("model", "kind"),
        ("generation", "cache"),
        ("model", "dropout"),
    ):
        assert resolve_key(key, "--vary") == f"{section}.{key}"
