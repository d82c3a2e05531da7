"""The inner numbers of feed-forward, recurrent, convolutional and mixture layers are their own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tests.explain.explain_helpers import TEXT, explain_walk, make_run
from torch import Tensor

from polyhead.explain.arrays import ArrayReader
from polyhead.run.run import Run


def explain_step(run: Run, kind: str) -> tuple[dict[str, Any], ArrayReader, Tensor]:
    """The first step of a kind, a reader, and the input of the step."""
    document = explain_walk(run, TEXT)
    read = ArrayReader.from_document(document)
    step = next(step for step in document["walk"] if step["kind"] == kind)
    return step, read, torch.from_numpy(read(step["in"])).float()


def check(read: ArrayReader, step: dict[str, Any], role: str, expected: Tensor) -> None:
    compare(read(step["values"][role]), expected)


def compare(got: NDArray[Any], expected: Tensor) -> None:
    """To 2e-6 of the largest number, or of 1; the sums here are in another order than in the model."""
    bound = 2e-6 * max(1.0, float(expected.abs().max()))
    assert got.shape == tuple(expected.shape)
    assert np.abs(got - expected.numpy()).max() <= bound


def test_the_units_shown_add_most_to_the_output() -> None:
    run = make_run(kind="decoder", feed_forward="gelu")
    step, read, x = explain_step(run, "feed_forward")
    model: Any = run.model
    ffn = model.stack.layers[0].ffn
    with torch.no_grad():
        pre = F.linear(x, ffn.up_proj.weight, ffn.up_proj.bias)
        act = F.gelu(pre)
    unit = torch.from_numpy(read(step["values"]["unit"])).long()
    assert unit.shape == (len(x), 32)
    check(read, step, "pre", pre.gather(1, unit))
    check(read, step, "act", act.gather(1, unit))
    effect = act.abs() * ffn.down_proj.weight.norm(dim=0)
    assert effect.gather(1, unit).min(1).values.ge(effect.topk(32, 1).values[:, -1] - 1e-6).all()
    assert step["facts"]["active"] == pytest.approx((act > 0).float().mean(1).tolist())


def test_the_gate_of_a_unit_is_multiplied() -> None:
    run = make_run(kind="decoder", feed_forward="swiglu")
    step, read, x = explain_step(run, "feed_forward")
    model: Any = run.model
    ffn = model.stack.layers[0].ffn
    with torch.no_grad():
        gate, up = F.linear(x, ffn.gate_proj.weight), F.linear(x, ffn.up_proj.weight)
    unit = torch.from_numpy(read(step["values"]["unit"])).long()
    for role, numbers in {"pre": gate, "act": F.silu(gate), "up": up, "hidden": F.silu(gate) * up}.items():
        check(read, step, role, numbers.gather(1, unit))


def test_experts_and_their_weights_are_those_of_the_router() -> None:
    run = make_run(kind="decoder", feed_forward={"name": "moe", "n_experts": 5, "top_k": 2})
    step, read, x = explain_step(run, "moe")
    model: Any = run.model
    moe = model.stack.layers[0].ffn
    with torch.no_grad():
        p = (x @ moe.router.weight.T).softmax(-1)
        experts = (p + moe.balance).topk(2).indices
        chosen = p.gather(1, experts)
    check(read, step, "probability", p)
    assert read(step["values"]["expert"]).tolist() == experts.tolist()
    check(read, step, "weight", chosen / chosen.sum(1, keepdim=True))


def test_the_sum_of_the_chosen_experts_is_the_output() -> None:
    run = make_run(
        kind="decoder", feed_forward={"name": "moe", "n_experts": 5, "top_k": 3, "expert": "swiglu"}
    )
    step, read, x = explain_step(run, "moe")
    model: Any = run.model
    moe, experts = model.stack.layers[0].ffn, read(step["values"]["expert"]).astype(int)
    with torch.no_grad():
        all_outputs = torch.stack([expert(x) for expert in moe.experts], 1)  # (T, E, C)
    written = all_outputs.gather(1, torch.from_numpy(experts)[..., None].expand(-1, -1, x.size(1)))
    check(read, step, "written", written)
    weights = torch.from_numpy(read(step["values"]["weight"])).float()
    compare(read(step["out"]), (written * weights[..., None]).sum(1))


def run_lstm(rnn: Any, x: Tensor) -> dict[str, Tensor]:
    """Sums, states and cells of each row, by the equations (Gers et al., 2000)."""
    rows: dict[str, list[Tensor]] = {role: [] for role in ("i", "f", "g", "o", "cell", "state", "before")}
    h = c = x.new_zeros(rnn.hidden_size)
    for row in x:
        sums = rnn.weight_ih_l0 @ row + rnn.bias_ih_l0 + rnn.weight_hh_l0 @ h + rnn.bias_hh_l0
        i, f, g, o = sums.chunk(4)
        rows["before"].append(c)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        for role, number in {"i": i, "f": f, "g": g, "o": o, "cell": c, "state": h}.items():
            rows[role].append(number)
    return {role: torch.stack(numbers) for role, numbers in rows.items()}


def run_gru(rnn: Any, x: Tensor) -> dict[str, Tensor]:
    """Sums and states of each row, the reset gate after the product (cuDNN's form of Cho et al., 2014)."""
    rows: dict[str, list[Tensor]] = {role: [] for role in ("r", "z", "a", "u", "state", "before")}
    (wr, wz, wn), (ur, uz, un) = rnn.weight_ih_l0.chunk(3), rnn.weight_hh_l0.chunk(3)
    (br, bz, bn), (cr, cz, cn) = rnn.bias_ih_l0.chunk(3), rnn.bias_hh_l0.chunk(3)
    h = x.new_zeros(rnn.hidden_size)
    for row in x:
        r, z = wr @ row + br + ur @ h + cr, wz @ row + bz + uz @ h + cz
        a, u = wn @ row + bn, un @ h + cn
        rows["before"].append(h)
        h = (1 - z.sigmoid()) * (a + r.sigmoid() * u).tanh() + z.sigmoid() * h
        for role, number in {"r": r, "z": z, "a": a, "u": u, "state": h}.items():
            rows[role].append(number)
    return {role: torch.stack(numbers) for role, numbers in rows.items()}


def run_plain(rnn: Any, x: Tensor) -> dict[str, Tensor]:
    """Sums and states of each row (Elman, 1990)."""
    rows: dict[str, list[Tensor]] = {"a": [], "state": [], "before": []}
    h = x.new_zeros(rnn.hidden_size)
    for row in x:
        rows["before"].append(h)
        rows["a"].append(rnn.weight_ih_l0 @ row + rnn.weight_hh_l0 @ h)
        h = rows["a"][-1].tanh()
        rows["state"].append(h)
    return {role: torch.stack(numbers) for role, numbers in rows.items()}


def find_input(run: Run, module: torch.nn.Module, document: dict[str, Any]) -> Tensor:
    """The exact input (T, C) of a module of the model for the first text, in float64."""
    inputs: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0].double()))
    with torch.inference_mode():
        run.model(torch.tensor([[token["id"] for token in document["sides"][0]["tokens"]]]))
    hook.remove()
    return inputs[0]


RECURRENT: dict[str, Any] = {"lstm": run_lstm, "gru": run_gru, "rnn": run_plain}


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("block", RECURRENT)
def test_a_recurrent_network_shows_its_sums_and_states(block: str, first: int) -> None:
    run = make_run(kind="decoder", block=block)
    document = explain_walk(run, TEXT, **({"first": first, "n_shown": 5} if first else {}))
    step = next(step for step in document["walk"] if step["kind"] == "recurrent")
    read = ArrayReader.from_document(document)
    model: Any = run.model
    rnn = model.stack.layers[0].rnn
    with torch.no_grad():
        expected = RECURRENT[block](copy.deepcopy(rnn).double(), find_input(run, rnn, document))
    before = expected.pop("before")
    shown = slice(first, first + 5) if first else slice(None)
    for role, numbers in expected.items():
        check(read, step, role, numbers[shown])
    check(read, step, "start", before[first])
    assert set(step["values"]) == {*expected, "start"}


@pytest.mark.parametrize("block", RECURRENT)
def test_a_reverse_network_is_shown_in_the_order_of_the_text(block: str) -> None:
    """The output of both is that of one after the other, feature by feature."""
    run = make_run(kind="encoder", block=block, norm_first=True)
    document = explain_walk(run, TEXT)
    read = ArrayReader.from_document(document)
    reverse = next(step for step in document["walk"] if step["role"] == "reverse")
    forward = next(step for step in document["walk"] if step["role"] == "rnn")
    model: Any = run.model
    layer = copy.deepcopy(model.encoder.stack.layers[0]).double()
    x = find_input(run, model.encoder.stack.layers[0].rnn, document)
    compare(read(reverse["in"]), x)
    with torch.no_grad():
        expected = {role: rows.flip(0) for role, rows in RECURRENT[block](layer.reverse, x.flip(0)).items()}
        ahead = RECURRENT[block](layer.rnn, x)["state"]
    check(read, reverse, "start", expected.pop("before")[-1])
    for role, numbers in expected.items():
        check(read, reverse, role, numbers)
    compare(read(forward["out"]), ahead)
    compare(read(reverse["out"]), torch.cat([ahead, expected["state"]], -1))


@pytest.mark.parametrize("units", [20, 24])
def test_the_input_of_a_map_after_two_networks_is_their_output(units: int) -> None:
    document = explain_walk(make_run(kind="encoder", block={"name": "lstm", "units": units}), TEXT)
    steps = [step for step in document["walk"] if step["layer"] == 0]
    reverse, projection = (next(s for s in steps if s["role"] == role) for role in ("reverse", "o_proj"))
    assert reverse["out"] == projection["in"]
    assert document["values"][reverse["out"]]["shape"][1] == units


@pytest.mark.parametrize(
    "config",
    [
        {"residual_scale": 0.5, "norm_first": True},
        {"block": "parallel", "norm_first": True, "residual_scale": 0.3},
        {"block": "parallel", "norm_first": True},
        {"sandwich_norm": True, "norm_first": True},
    ],
    ids=str,
)
def test_a_residual_adds_what_its_parts_computed_times_its_scale(config: dict[str, Any]) -> None:
    document = explain_walk(make_run(kind="decoder", **config), TEXT)
    read = ArrayReader.from_document(document)
    steps = {step["out"]: step for step in document["walk"]}
    for step in [step for step in document["walk"] if step["kind"] == "residual"]:
        branches = [name for role, name in step["values"].items() if role.startswith("branch")]
        assert len(branches) == (2 if "block" in config else 1)
        assert all(name in steps for name in branches)
        added = sum(read(name) for name in branches) * config.get("residual_scale", 1)
        compare(read(step["out"]), torch.from_numpy(read(step["values"]["x"]) + added))


def test_the_gate_of_a_convolution() -> None:
    run = make_run(kind="decoder", block="gated_conv", norm_first=True)
    step, read, x = explain_step(run, "conv")
    model: Any = run.model
    conv = model.stack.layers[0].conv
    with torch.no_grad():
        padded = F.pad(x, (0, 0, 2, 0))
        windows = torch.cat([padded[i : i + len(x)] for i in range(3)], -1)
        value, gate = conv(windows).chunk(2, -1)
    check(read, step, "value", value)
    check(read, step, "gate", gate)
    compare(read(step["out"]), value * gate.sigmoid())
