"""The inner numbers of feed-forward, recurrent, convolutional and mixture layers are their own."""

from __future__ import annotations

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


def test_an_lstm_shows_its_two_states() -> None:
    run = make_run(kind="decoder", block="lstm")
    step, read, x = explain_step(run, "recurrent")
    model: Any = run.model
    rnn = model.stack.layers[0].rnn
    h = c = torch.zeros(rnn.hidden_size)
    states, cells = [], []
    with torch.no_grad():
        for row in x:
            gates = rnn.weight_ih_l0 @ row + rnn.bias_ih_l0 + rnn.weight_hh_l0 @ h + rnn.bias_hh_l0
            i, f, g, o = gates.chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
            cells.append(c)
    check(read, step, "state", torch.stack(states))
    check(read, step, "cell", torch.stack(cells))


def test_a_reverse_network_is_shown_in_the_order_of_the_text() -> None:
    run = make_run(kind="encoder", block="gru", norm_first=True)
    document = explain_walk(run, TEXT)
    read = ArrayReader.from_document(document)
    reverse = next(step for step in document["walk"] if step["role"] == "reverse")
    model: Any = run.model
    rnn = model.encoder.stack.layers[0].reverse
    x = torch.from_numpy(read(reverse["in"])).float()
    with torch.no_grad():
        out = rnn(x.flip(0)[None], (torch.zeros(1, rnn.hidden_size),))[0][0].flip(0)
    check(read, reverse, "state", out)


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
