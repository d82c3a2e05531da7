"""A forward pass goes through few functions of this package, so that it can be read, and costs little in
small steps.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import polyhead
from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.models import build

ROOT = f"{Path(polyhead.__file__).parent}/"
SIZES = {"kind": "decoder", "vocab_size": 50, "d_model": 32, "n_heads": 4, "n_layers": 2, "norm_first": True}
DESIGNS = [
    {"position": "rope", "norm": "rmsnorm", "feed_forward": "swiglu", "n_kv_heads": 2},
    {"position": "rope", "norm": "layernorm", "feed_forward": "gelu"},
    {"position": "learned", "norm": "layernorm", "feed_forward": "gelu"},
]


def count_functions(call):
    """How often each function of the package is called; nested functions and comprehensions count by
    themselves.
    """
    calls = Counter()

    def see(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            calls[f"{frame.f_code.co_filename.removeprefix(ROOT)}: {frame.f_code.co_qualname}"] += 1

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls


def check(calls, functions, total):
    listing = "\n".join(f"{n:4} {name}" for name, n in calls.items())
    assert len(calls) <= functions and calls.total() <= total, (
        f"{len(calls)} functions in {calls.total()} calls:\n{listing}"
    )
    assert any("Attention.forward" in name for name in calls)


@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_a_forward_pass_of_two_layers(design):
    model, tokens = build(ModelConfig(**SIZES, **design), seed=1).eval(), torch.randint(0, 50, (2, 6))
    with torch.no_grad():
        check(count_functions(lambda: model(tokens)), 26, 70)


@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_a_cached_step_of_one_attention(design):
    model = build(ModelConfig(**SIZES, **design), seed=1).eval()
    cache, attention = make_cache(Choice("growing"), model.cache_shape, 2, 8), model.stack.layers[1].attn
    with torch.no_grad():
        for t in range(3):
            pos = torch.full((2, 1), t)
            cache.prepare_step(range(2), pos)
            position = attention.position.prepare(pos, 1, pos.device)
            x, layer = torch.randn(2, 1, 32), cache.layers[1]
            calls = count_functions(
                lambda x=x, layer=layer, pos=pos, position=position: attention(x, pos, layer, None, position)
            )
    check(calls, 16, 26)
