import copy
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.explain import explain_helpers as helpers


class RecordedStep:
    def __init__(self, kind, **config):
        config = {"kind": "decoder", **config}
        self.document, self.read = helpers.explain_config(config)
        self.step = helpers.list_steps(self.document, kind)[0]
        self.layer = helpers.make_run(**config).model.stack.layers[0].requires_grad_(False)
        self.x = torch.from_numpy(self.read(self.step["in"])).float()

    def read_value(self, role):
        return self.read(self.step["values"][role])

    def check(self, role, expected):
        check_values(self.read, self.step, {role: expected})


def check_values(read, step, expected):
    for role, value in expected.items():
        helpers.check_close(read(step["out"] if role == "out" else step["values"][role]), value, 2e-6)


def test_units_are_those_with_largest_effect():
    part_step = RecordedStep("feed_forward", feed_forward="gelu")
    ffn = part_step.layer.ffn
    pre = F.linear(part_step.x, ffn.up_proj.weight, ffn.up_proj.bias)
    act = F.gelu(pre)
    unit = torch.from_numpy(part_step.read_value("unit")).long()
    assert unit.shape == (len(part_step.x), 32)
    part_step.check("pre", pre.gather(1, unit))
    part_step.check("act", act.gather(1, unit))
    effect = act.abs() * ffn.down_proj.weight.norm(dim=0)
    assert effect.gather(1, unit).min(1).values.ge(effect.topk(32, 1).values[:, -1] - 1e-6).all()
    assert part_step.step["facts"]["active"] == pytest.approx((act > 0).float().mean(1).tolist())
    edges = [-math.inf, *np.arange(-4, 4.1, 0.25), math.inf]
    counts = np.stack([np.histogram(row, edges)[0] for row in pre.double().numpy()])
    assert part_step.read_value("counts").tolist() == counts.tolist() and counts.sum() == pre.numel()
    part_step.check("curve", F.gelu(torch.arange(-4, 4.1, 0.125)))
    # a gate is multiplied
    part_step = RecordedStep("feed_forward", feed_forward="swiglu")
    ffn = part_step.layer.ffn
    gate, up = (F.linear(part_step.x, proj.weight) for proj in (ffn.gate_proj, ffn.up_proj))
    unit = torch.from_numpy(part_step.read_value("unit")).long()
    for role, value in {"pre": gate, "act": F.silu(gate), "up": up, "hidden": F.silu(gate) * up}.items():
        part_step.check(role, value.gather(1, unit))


def test_experts_match_router_and_sum_to_output():
    moe = {"name": "moe", "n_experts": 5, "top_k": 3, "expert": "swiglu"}
    part_step = RecordedStep("moe", feed_forward=moe)
    moe, x = part_step.layer.ffn, part_step.x
    p = (x @ moe.router.weight.T).softmax(-1)
    experts = (p + moe.balance).topk(3).indices
    weights = p.gather(1, experts) / p.gather(1, experts).sum(1, keepdim=True)
    part_step.check("probability", p)
    part_step.check("weight", weights)
    assert part_step.read_value("expert").tolist() == experts.tolist()
    outputs = torch.stack([expert(x) for expert in moe.experts], 1)  # (T, E, C)
    outputs = outputs.gather(1, experts[..., None].expand(-1, -1, x.size(1)))
    part_step.check("written", outputs)
    part_step.check("out", (outputs * weights[..., None]).sum(1))


def run_lstm(rnn, x):
    """Sums, cells and states of each row, by the equations (Gers et al., 2000)."""
    h = c = x.new_zeros(rnn.hidden_size)
    for row in x:
        sums = rnn.weight_ih_l0 @ row + rnn.bias_ih_l0 + rnn.weight_hh_l0 @ h + rnn.bias_hh_l0
        i, f, g, o = sums.chunk(4)
        previous, c = c, f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        yield {"i": i, "f": f, "g": g, "o": o, "cell": c, "state": h, "before": previous}


def run_gru(rnn, x):
    """Sums and states of each row, the reset gate after the product (cuDNN's form of Cho et al., 2014)."""
    (wr, wz, wn), (ur, uz, un) = rnn.weight_ih_l0.chunk(3), rnn.weight_hh_l0.chunk(3)
    (br, bz, bn), (cr, cz, cn) = rnn.bias_ih_l0.chunk(3), rnn.bias_hh_l0.chunk(3)
    h = x.new_zeros(rnn.hidden_size)
    for row in x:
        r, z = wr @ row + br + ur @ h + cr, wz @ row + bz + uz @ h + cz
        a, u = wn @ row + bn, un @ h + cn
        previous, h = h, (1 - z.sigmoid()) * (a + r.sigmoid() * u).tanh() + z.sigmoid() * h
        yield {"r": r, "z": z, "a": a, "u": u, "state": h, "before": previous}


def run_rnn(rnn, x):
    """Sums and states of each row (Elman, 1990)."""
    h = x.new_zeros(rnn.hidden_size)
    for row in x:
        a = rnn.weight_ih_l0 @ row + rnn.weight_hh_l0 @ h
        previous, h = h, a.tanh()
        yield {"a": a, "state": h, "before": previous}


BLOCKS = {"lstm": run_lstm, "gru": run_gru, "rnn": run_rnn}


@torch.no_grad()
def run_recurrent(block, rnn, x):
    """The numbers of each role, in float64, and the state or cell before each row as ``before``."""
    rows = list(BLOCKS[block](copy.deepcopy(rnn).double(), x))
    return {role: torch.stack([row[role] for row in rows]) for role in rows[0]}


def find_input(run, module, document):
    """The exact input (T, C) of a module of the model for the first text, in float64."""
    inputs = []
    hook = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0].double()))
    with torch.inference_mode():
        run.model(*helpers.make_inputs(document))
    hook.remove()
    return inputs[0].clone()


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("block", BLOCKS)
def test_recurrent_sums_and_states(block, first):
    run = helpers.make_run(kind="decoder", block=block)
    document = helpers.explain_walk(run, **({"first": first, "n_shown": 5} if first else {}))
    (step, *_), read = helpers.list_steps(document, "recurrent"), helpers.read_document(document)
    rnn = run.model.stack.layers[0].rnn
    expected = run_recurrent(block, rnn, find_input(run, rnn, document))
    start = expected.pop("before")[first]
    rows = slice(first, first + 5) if first else slice(None)
    fixed = {"start": start}
    if block != "rnn":
        fixed |= {"x_bias": rnn.bias_ih_l0.detach(), "state_bias": rnn.bias_hh_l0.detach()}
    check_values(read, step, {role: numbers[rows] for role, numbers in expected.items()} | fixed)
    assert set(step["values"]) == {*expected, *fixed}


@pytest.mark.parametrize("units", [20, 24])
@pytest.mark.parametrize("block", BLOCKS)
def test_reverse_network_is_in_text_order(block, units):
    run = helpers.make_run(kind="encoder", block={"name": block, "units": units}, norm_first=True)
    document = helpers.explain_walk(run)
    read = helpers.read_document(document)
    steps = {step["role"]: step for step in document["walk"] if step["layer"] == 0}
    reverse, forward = steps["reverse"], steps["rnn"]
    assert reverse["out"] == steps["o_proj"]["in"]
    layer = run.model.encoder.stack.layers[0]
    x = find_input(run, layer.rnn, document)
    helpers.check_close(read(reverse["in"]), x, 2e-6)
    expected = run_recurrent(block, layer.reverse, x.flip(0))
    expected = {role: rows.flip(0) for role, rows in expected.items()}
    start = expected.pop("before")[-1]
    states = run_recurrent(block, layer.rnn, x)["state"]
    check_values(read, forward, {"out": states})
    output = torch.cat([states, expected["state"]], -1)
    check_values(read, reverse, {**expected, "start": start, "out": output})


@pytest.mark.parametrize(
    "config",
    [
        {"residual_scale": 0.5, "norm_first": True},
        {"block": "parallel", "norm_first": True, "residual_scale": 0.3},
        {"block": "parallel", "norm_first": True},
        {"sandwich_norm": True, "norm_first": True},
        {"residual": "deepnorm", "n_layers": 3},
        {"residual": "none", "block": "parallel", "norm_first": True},
    ],
    ids=str,
)
def test_residual_adds_scaled_branches(config):
    document, read = helpers.explain_config({"kind": "decoder", **config})
    outputs = {step["out"] for step in document["walk"]}
    for step in helpers.list_steps(document, "residual"):
        branches = [name for role, name in step["values"].items() if role.startswith("branch")]
        assert len(branches) == (2 if "block" in config else 1)
        assert outputs.issuperset(branches)
        branch_sum = sum(read(name) for name in branches) * config.get("residual_scale", 1)
        skip = {"add": 1, "none": 0, "deepnorm": 6**0.25}[config.get("residual", "add")]
        check_values(read, step, {"out": skip * read(step["values"]["x"]) + branch_sum})


@pytest.mark.parametrize("norm_first", [False, True])
def test_block_without_residual_has_no_sum(norm_first):
    document, _ = helpers.explain_config({"kind": "decoder", "residual": "none", "norm_first": norm_first})
    assert not helpers.list_steps(document, "residual")
    parts = [step for step in document["walk"] if step["kind"] in ("attention", "feed_forward", "norm")]
    assert all(later["in"] == step["out"] for step, later in itertools.pairwise(parts))


@pytest.mark.parametrize("name", ["conv", "gated_conv"])
def test_convolution(name):
    part_step = RecordedStep("conv", block=name, norm_first=True)
    x = part_step.x
    x_pad = F.pad(x, (0, 0, 2, 0))
    windows = torch.cat([x_pad[i : i + len(x)] for i in range(3)], -1)
    value, *gates = part_step.layer.conv(windows).split(x.size(-1), -1)
    expected = {"value": value, "out": value * gates[0].sigmoid() if gates else value.relu()}
    for role, array in (expected | dict(zip(["gate"], gates, strict=False))).items():
        part_step.check(role, array)
