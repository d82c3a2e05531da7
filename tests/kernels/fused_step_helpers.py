import json
from pathlib import Path

import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.cache.factory import make_cache
from polyhead.kernels import fused_step as steps

SIZES = {"kind": "decoder", "vocab_size": 97, "d_model": 128, "n_heads": 4, "n_layers": 2, "d_ff": 200}
SIZES["max_len"] = 48

NAMED_MODELS = json.loads(Path(__file__).with_name("fused_step_models.json").read_text())
ENCODERS = {name: sizes for name, sizes in NAMED_MODELS.items() if sizes.get("kind") == "encoder"}
MODELS = {name: sizes for name, sizes in NAMED_MODELS.items() if name not in ENCODERS}


def build_model(name, dtype=torch.float32):
    model = build(ModelConfig.model_validate(SIZES | NAMED_MODELS[name]), seed=1).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model.to(dtype)


@torch.inference_mode()
def decode_logits(model, cache="static", rows=3, beams=1):
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
    was_fused, inner = [], steps.FusedSteps.__call__

    def record_call(*args):
        out = inner(*args)
        was_fused.append(out is not None)
        return out

    monkeypatch.setattr(steps.FusedSteps, "__call__", record_call)
    return was_fused
