import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import polyhead
from polyhead import Choice, ModelConfig, build
from polyhead.cache.factory import make_cache

ROOT = f"{Path(polyhead.__file__).parent}/"
SIZES = {"kind": "decoder", "vocab_size": 50, "d_model": 32, "n_heads": 4, "n_layers": 2, "norm_first": True}
DESIGNS = [
    {"position": "rope", "norm": "rmsnorm", "feed_forward": "swiglu", "n_kv_heads": 2},
    {"position": "rope", "norm": "layernorm", "feed_forward": "gelu"},
    {"position": "learned", "norm": "layernorm", "feed_forward": "gelu"},
]


def assert_few_calls(call, functions, total):
    calls = Counter()

    def count(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            calls[f"{frame.f_code.co_filename.removeprefix(ROOT)}: {frame.f_code.co_qualname}"] += 1

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert any("Attention.forward" in name for name in calls)
    assert len(calls) <= functions and calls.total() <= total, f"{calls.total()} calls: {calls}"


@pytest.mark.parametrize("design", DESIGNS, ids=str)
@torch.no_grad()
def test_forward_pass_and_cached_step_call_few_functions(design):
    model = build(ModelConfig(**SIZES, **design), seed=1).eval()
    assert_few_calls(lambda: model(torch.randint(0, 50, (2, 6))), 26, 70)
    cache, attention = make_cache(Choice("growing"), model.cache_shape, 2, 8), model.stack.layers[1].attn
    for t in range(3):
        pos = torch.full((2, 1), t)
        cache.prepare_step(range(2), pos)
        scheme = attention.position.prepare(pos, 1, pos.device)
        inputs = torch.randn(2, 1, 32), pos, cache.layers[1], None, scheme
        if t < 2:
            attention(*inputs)
    assert_few_calls(lambda: attention(*inputs), 16, 26)
