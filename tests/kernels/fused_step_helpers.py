"""Shared by the tests of fused_step."""

import pytest
import torch

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.kernels import fused_step as steps
from polyhead.models import build

SIZES = {
    "d_model": 128,
    "n_heads": 4,
    "n_layers": 2,
    "vocab_size": 97,
    "max_len": 48,
    "d_ff": 200,
    "kind": "decoder",
}

GROUPS = {"n_kv_heads": 2, "norm": "rmsnorm", "norm_first": True}

MODELS = {
    "base": {"kind": "encoder-decoder"},
    "gpt2": {"position": "learned", "norm_first": True, "feed_forward": {"name": "gelu", "tanh": True}},
    "arcee": {**GROUPS, "position": "rope", "norm": "rmsnorm", "feed_forward": "relu2"},
    "nanochat": {
        **GROUPS, "position": "rope", "norm": {"name": "rmsnorm", "weight": False}, "embedding_norm": True,
            "feed_forward": "relu2",
        "attention": {"name": "softmax", "qk_norm": "unweighted"},
    },
    "llama": {**GROUPS, "position": "rope", "feed_forward": "swiglu"},
    "qwen3": {**GROUPS, "position": "rope", "attention": {"name": "softmax", "qk_norm": True, "bias": False},
        "feed_forward": "glu"},
    "window": {"position": "rope", "attention": {"name": "softmax", "window": 3, "sink": 1, "scale": 0.3},
        "feed_forward": "silu"},
    "patterned": {
        **GROUPS,
        "position": "rope",
        "layer_pattern": [{"attention": {"name": "softmax", "window": 3}}, {"position": {"name": "rope",
            "theta": 100.0}}],
        "feed_forward": "geglu",
    },
    "one key": {"n_kv_heads": 1, "position": {"name": "rope", "scaling": "yarn", "factor": 4.0,
        "original_len": 12}},
    "bloom": {"position": "alibi", "norm_first": True, "embedding_norm": True,
        "feed_forward": {"name": "gelu", "tanh": True}},
    "t5": {**GROUPS, "kind": "encoder-decoder", "position": "t5", "feed_forward": "relu",
        "attention": {"name": "softmax", "scale": 1.0, "bias": False}},
    "gemma2": {
        **GROUPS, "position": "rope", "sandwich_norm": True, "feed_forward": {"name": "geglu", "tanh": True},
        "layer_pattern": [{"attention": {"name": "softmax", "window": 3, "softcap": 2.0, "scale": 1.0}},
            {"attention": {"name": "softmax", "softcap": 0.5, "scale": 1.0}}],
    },
    "gptj": {"position": {"name": "rope", "layout": "interleaved"}, "norm_first": True,
             "block": {"name": "parallel", "one_norm": True}, "feed_forward": "gelu", "lm_head_bias": True},
    "neox": {"position": {"name": "rope", "fraction": 0.5, "layout": "interleaved"}, "norm_first": True,
        "block": "parallel", "feed_forward": "gelu"},
    "sandwich": {"norm": {"name": "rmsnorm", "zero_centered": True, "eps": 0.1}, "norm_first": True,
        "sandwich_norm": True, "feed_forward": "tanh"},
    "olmo2": {
        **GROUPS, "position": "rope", "sandwich_norm": "after", "feed_forward": "swiglu",
        "attention": {"name": "softmax", "qk_norm": "all_heads", "bias": False},
    },
    "gemma3": {
        **GROUPS, "position": "rope", "norm": {"name": "rmsnorm", "zero_centered": True},
            "sandwich_norm": True,
        "feed_forward": {"name": "geglu", "tanh": True}, "attention": {"name": "softmax",
            "qk_norm": "zero_centered", "scale": 0.2},
        "layer_pattern": [{}, {"attention": {"name": "softmax", "qk_norm": "zero_centered", "window": 3,
            "scale": 0.2}, "position": {"name": "rope", "theta": 100.0}}],
    },
    "smollm3": {**GROUPS, "position": "rope", "feed_forward": "swiglu", "layer_pattern": [{},
        {"position": "none"}]},
    "normless": {"norm": "none", "feed_forward": "leaky_relu", "position": "none"},
    "learned slope": {"norm": {"name": "layernorm", "bias": False, "eps": 0.1},
        "feed_forward": {"name": "prelu", "slope": 0.4, "bias": False}},
    "crossing": {**GROUPS, "kind": "encoder-decoder", "position": "rope", "feed_forward": "reglu",
        "embedding_norm": "first"},
    "looking": {"kind": "encoder-decoder", "cross_attention": {"name": "softmax", "qk_norm": True,
        "scale": 0.2}},
}  # fmt: skip

ENCODERS = {
    "modern": {
        "kind": "encoder", "position": "rope", "norm_first": True, "feed_forward": "geglu",
        "layer_pattern": [{}, {"attention": {"name": "softmax", "window": 3}}],
    },
    "t5's": {"kind": "encoder", "position": "t5", "norm_first": True},
    "bert": {"kind": "encoder", "position": "learned", "feed_forward": "gelu", "embedding_norm": True,
        "n_segments": 2},
}  # fmt: skip


def build_model(name, dtype=torch.float32):
    """A model with random biases and norm weights in place of 0 and 1."""
    model = build(ModelConfig.model_validate(SIZES | (MODELS | ENCODERS)[name]), seed=1).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model.to(dtype)


@torch.inference_mode()
def decode_logits(model, cache="static", rows=3, beams=1):
    """Logits of 7 tokens: four one by one, then three at once."""
    torch.manual_seed(3)
    tokens, source = torch.randint(5, 97, (rows * beams, 7)), torch.randint(5, 97, (rows, 6))
    kv_cache, memory = make_cache(Choice(cache), model.cache_shape, rows * beams, 48), None
    if model.config.kind == "encoder-decoder":
        source_pos = torch.arange(6).repeat(rows, 1)
        source_pos[-1, 4:] = -1
        memory = [kv.contiguous_for_decoding() for kv in model.encode(source, source_pos)]
    actual = []
    for step in [slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 4), slice(4, 7)]:
        pos = torch.arange(7).repeat(rows * beams, 1)[:, step]
        kv_cache.prepare_step(range(rows * beams), pos)
        actual.append(model.decode(tokens[:, step], pos, kv_cache, memory))
    return torch.cat(actual, 1).float()


def assert_logits_close(actual, expected, atol=2e-5):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=1e-5)


@pytest.fixture
def fused_calls(monkeypatch):
    """For each step, whether it was one call of the kernels."""
    was_fused, inner = [], steps.FusedSteps.__call__

    def record_call(*args):
        out = inner(*args)
        was_fused.append(out is not None)
        return out

    monkeypatch.setattr(steps.FusedSteps, "__call__", record_call)
    return was_fused
