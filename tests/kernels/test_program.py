import copy

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from tests.kernels.fused_step_helpers import ENCODERS, SIZES, assert_logits_close, build_model, decode_logits
from tests.kernels.fused_step_helpers import fused_calls as fused_calls

from polyhead import ModelConfig, build
from polyhead.kernels import fused_step as steps
from polyhead.kernels.fused_step import PackedStack
from polyhead.kernels.pack_model import linear_factory, pack_model

pytestmark = needs_kernels


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_quantized_stack_in_fp32_matches_its_layers(dtype, monkeypatch):
    model = pack_model(build_model("llama"), linear_factory(dtype))
    actual = decode_logits(model)
    monkeypatch.setattr(steps.FusedSteps, "__call__", lambda *given: None)
    expected = decode_logits(model)
    # values near the middle of two steps may be rounded to either
    assert (actual - expected).square().mean().sqrt() < 2e-3 * expected.std()


@pytest.mark.parametrize(
    "changes",
    [
        *({"position": name} for name in ("shaw", "disentangled")),
        {"attention": {"name": "softmax", "tie": "kv"}},
        {"attention": "linear"},
        {"n_layers": 4, "layer_pattern": [{"attention": "linear"}, {}, {"block": "gru"}]},
        {"block": "gated_conv"},
        *({"feed_forward": name} for name in ("moe", "conv1x1")),
        *({"feed_forward": {"name": "swiglu", "beta": beta}} for beta in (1.702, "learned")),
        {"feed_forward": {"name": "prelu", "per_channel": True}},
        {"block": "rnn"},
        {"norm": "batchnorm"},
        {"block": "parallel", "norm_first": True, "norm": "none"},
        {"residual_scale": 0.5},
        {"residual": "deepnorm", "norm_first": False},
    ],
    ids=str,
)
def test_unsupported_parts_keep_the_plain_stack(changes):
    model = build(ModelConfig.model_validate(SIZES | changes), seed=1).eval()
    tokens = torch.randint(5, 97, (2, 6))
    with torch.inference_mode():
        expected = model(tokens)
        assert type(pack_model(model).stack).__name__ == "Stack" and not isinstance(model.stack, PackedStack)
        assert_logits_close(model(tokens), expected)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "patterned", "bloom", "gemma2", "neox", "sandwich", *ENCODERS]
)
def test_uncached_stacks_are_one_call(name, fused_calls):
    model = build_model(name)
    tokens, rows = torch.randint(5, 97, (3, 9)), torch.arange(9).repeat(3, 1)
    padded_pos, document_pos = rows.clone(), rows.clone()
    padded_pos[1, 5:], padded_pos[2, :4] = -1, -1
    document_pos[0, 4:] -= 4
    models = model, pack_model(copy.deepcopy(model))
    parts = [one if hasattr(one, "stack") else one.encoder for one in models]
    with torch.inference_mode():
        for pos in (None, padded_pos, document_pos):
            expected, actual = (part.stack(part.embedding(tokens, pos), pos) for part in parts)
            is_token = slice(None) if pos is None else pos >= 0
            assert_logits_close(actual[is_token], expected[is_token])
    assert fused_calls == [True] * 3
