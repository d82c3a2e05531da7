"""Tests of kernels/program.py."""

import copy

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from tests.kernels.fused_step_helpers import ENCODERS, SIZES, decoded, made
from tests.kernels.fused_step_helpers import calls as calls

from polyhead.config.model import ModelConfig
from polyhead.kernels import fused_step as steps
from polyhead.kernels.fused_step import PackedStack
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.models import build

pytestmark = needs_kernels


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_whole_numbers_beside_fp32_are_those_of_the_layers(dtype, monkeypatch):
    model = pack_model(made("llama"), linear_factory(dtype))
    found = decoded(model)
    monkeypatch.setattr(steps.FusedSteps, "__call__", lambda *given: None)
    wanted = decoded(model)
    assert (
        found - wanted
    ).square().mean().sqrt() < 2e-3 * wanted.std()  # a number between two whole ones may go to either


@pytest.mark.parametrize(
    "changes",
    [
        {"position": "shaw"},
        {"position": "disentangled"},
        {"attention": {"name": "softmax", "tie": "kv"}},
        {"attention": "linear"},
        {"n_layers": 4, "layer_pattern": [{"attention": "linear"}, {}, {"block": "gru"}]},
        {"block": "gated_conv"},
        {"feed_forward": "moe"},
        {"feed_forward": "conv1x1"},
        {"feed_forward": {"name": "swiglu", "beta": 1.702}},
        {"feed_forward": {"name": "swiglu", "beta": "learned"}},
        {"feed_forward": {"name": "prelu", "per_channel": True}},
        {"block": "rnn"},
        {"norm": "batchnorm"},
        {"block": "parallel", "norm_first": True, "norm": "none"},
        {"residual_scale": 0.5},
    ],
    ids=str,
)
def test_a_part_without_operations_leaves_the_stack_as_it_is(changes):
    model = build(ModelConfig.model_validate(SIZES | changes), seed=1).eval()
    tokens = torch.randint(5, 97, (2, 6))
    with torch.inference_mode():
        wanted = model(tokens)
        assert type(pack_model(model).stack).__name__ == "Stack" and not isinstance(model.stack, PackedStack)
        torch.testing.assert_close(model(tokens), wanted, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "patterned", "bloom", "gemma2", "neox", "sandwich", *ENCODERS]
)
def test_rows_that_keep_nothing_are_one_call_too(name, calls):
    """Encoders, and language models that are shown whole texts, with padding and with several documents in a
    row.
    """
    model = made(name)
    tokens, rows = torch.randint(5, 97, (3, 9)), torch.arange(9).repeat(3, 1)
    padded, several = rows.clone(), rows.clone()
    padded[1, 5:], padded[2, :4] = -1, -1
    several[0, 4:] -= 4
    parts = [
        one if hasattr(one, "stack") else one.encoder for one in (model, pack_model(copy.deepcopy(model)))
    ]
    with torch.inference_mode():
        for pos in (None, padded, several):
            wanted, found = (part.stack(part.embedding(tokens, pos), pos) for part in parts)
            there = slice(None) if pos is None else pos >= 0
            torch.testing.assert_close(found[there], wanted[there], atol=2e-5, rtol=1e-5)
    assert calls == [True] * 3
