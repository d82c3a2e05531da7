import pytest

from polyhead.compare import sweep
from polyhead.compare.sweep import Budget, read_budget
from polyhead.core.errors import UserError, command_line

ROPE = "{name: rope, theta: 5}"
AXES = [sweep.Axis("model.norm", ("layernorm", "rmsnorm")), sweep.Axis("model.position", ("none", ROPE))]


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("norm=layernorm,rmsnorm", "model.norm", ("layernorm", "rmsnorm")),
        ("model.norm=rmsnorm", "model.norm", ("rmsnorm",)),
        ("lr=1e-3, 1e-2", "train.lr", ("1e-3", "1e-2")),
        ("position.theta=1e4,5e5", "model.position.theta", ("1e4", "5e5")),
        ("schedule.warmup=10,20", "train.schedule.warmup", ("10", "20")),
        ("vocab_size=500,600", "tokenizer.vocab_size", ("500", "600")),
        ("position=none,{scaling: [a, b]}", "model.position", ("none", "{scaling: [a, b]}")),
        ("norm='a,b',rmsnorm,rmsnorm", "model.norm", ("'a,b'", "rmsnorm")),
    ],
)
def test_read_axis(text, key, values):
    assert sweep.read_axis(text) == sweep.Axis(key, values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("norm", "expected key=value,value"),
        ("norm=a,,b", "a value is empty"),
        ("nrm=a", "--vary nrm: unknown key; did you mean 'norm'"),
        ("train.norm=a", "--vary train.norm: unknown key; did you mean 'model.norm'"),
        ("qqqqqq=a", r"; dump_yaml\(\) of a Recipe lists all"),
        ("position={name: rope", "a bracket or quote is not closed"),
        ("seed=1,2", "compare sets train.seed itself; use --seeds"),
        ("steps=100,200", "use --budget"),
        ("patience=2", "compare sets train.patience itself: designs do not stop early"),
        ("test=[a, b],[c, d]", "designs are evaluated on the same text, which data.test changes"),
        ("data.valid_fraction=0.1,0.2", "which data.valid_fraction changes"),
    ],
)
@pytest.mark.whole
def test_invalid_axis_is_an_error(text, message):
    with pytest.raises(UserError, match=message):
        sweep.read_axis(text)


def test_read_design():
    text = "with  lstm: model.n_layers=1  position={name: rope, theta: 5e5} lr=1e-3"
    changes = ("model.n_layers=1", "model.position={name: rope, theta: 5e5}", "train.lr=1e-3")
    assert sweep.read_design(text) == sweep.DesignSpec("with lstm", changes)
    for invalid in ("norm=rmsnorm", "name:", ": norm=rmsnorm", "a=b: norm=rmsnorm"):
        with command_line(), pytest.raises(UserError, match="expected 'name: key=value key=value'"):
            sweep.read_design(invalid)
    with pytest.raises(UserError, match="--design x: 'rmsnorm' is not key=value"):
        sweep.read_design("x: norm=layernorm rmsnorm")


def test_axes_and_grid_name_differences_from_base():
    assert list(sweep.vary_one_axis(AXES)) == [
        sweep.DesignSpec("norm=layernorm", ("model.norm=layernorm",)),
        sweep.DesignSpec("norm=rmsnorm", ("model.norm=rmsnorm",)),
        sweep.DesignSpec("position=none", ("model.position=none",)),
        sweep.DesignSpec("position=rope(theta=5)", (f"model.position={ROPE}",)),
    ]
    base = ("model.norm=layernorm", "model.position=none")
    designs = list(sweep.expand_grid(AXES, lambda change: change in base))
    names = ["position=rope(theta=5)", "norm=rmsnorm", "norm=rmsnorm position=rope(theta=5)"]
    assert [design.name for design in designs] == names
    assert designs[2].changes == ("model.norm=rmsnorm", f"model.position={ROPE}")
    # a key that is given twice is one axis
    axes = [sweep.Axis("model.norm", ("layernorm",)), sweep.Axis("model.norm", ("rmsnorm",))]
    changes = [design.changes for design in sweep.expand_grid(axes, lambda change: False)]
    assert changes == [("model.norm=layernorm",), ("model.norm=rmsnorm",)]


def test_resolve_key_with_and_without_section():
    for key in ("model.max_len", "model.kind", "generation.cache", "model.dropout"):
        assert sweep.resolve_key(key.partition(".")[2], "--vary") == key
    for key in ("init_from", "init_from.layer_stride", "distill.temperature", "task.mask"):
        assert sweep.resolve_key(key, "--vary") == key
    message = "--vary task: all designs have the same task; its options can be varied, e.g. task.mask"
    with pytest.raises(UserError, match=message):
        sweep.resolve_key("task", "--vary")


@pytest.mark.parametrize(
    ("text", "kind", "amount", "description"),
    [
        ("10m", "time", 600, "10 min of training"),
        ("90s", "time", 90, "1.5 min of training"),
        ("1h", "time", 3600, "1 h of training"),
        ("1 H 30 min", "time", 5400, "1 h 30 min of training"),
        ("2.5 minutes", "time", 150, "2.5 min of training"),
        ("7199s", "time", 7199, "2 h of training"),
        ("61s", "time", 61, "1.02 min of training"),
        ("2,000 Steps", "steps", 2000, "2,000 steps"),
        ("1 step", "steps", 1, "1 steps"),
        ("2ksteps", "steps", 2000, "2,000 steps"),
        ("1.5 M tokens", "tokens", 1.5e6, "1,500,000 target tokens"),
        ("1e14flops", "flops", 1e14, "1e+14 FLOPs of training"),
    ],
)
def test_read_budget(text, kind, amount, description):
    budget = read_budget(text)
    assert (budget.kind, budget.amount) == (kind, amount)
    assert str(budget) == description
    assert read_budget(None) == Budget("recipe")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["", "10", "ten minutes", "m", "10mm", "5 apples"], r"expected a time \(90s, 10m, 1h30m\), steps"),
        (["10m 20steps", "-5m", "1e14"], r"expected a time \(90s, 10m, 1h30m\), steps \(2000steps\)"),
        (["3tokns"], "did you mean 'tokens'"),
        (["0m", "0steps", "0.4tokens"], "expected more than 0"),
        (["3Gsteps", "1e400flops", "9e40tokens"], "too large"),
    ],
)
def test_invalid_budget_is_an_error(texts, message):
    for text in texts:
        with pytest.raises(UserError, match=message):
            read_budget(text)
