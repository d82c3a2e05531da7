from math import prod

import pytest
import torch
from tests.explain.levers.levers_helpers import make_lever_input, make_model

from polyhead import Choice
from polyhead.cache.factory import make_cache
from polyhead.core.registry import CACHE
from polyhead.explain.levers.cache_bytes import describe_bytes
from polyhead.explain.levers.stepwise import read_stepwise

OPTIONS = {
    "window": [{"window": 4, "sink": 2}],
    "quantized": [{"bits": bits, "group": 4} for bits in (4, 8)],
    "h2o": [{"budget": 8}],
    "subgen": [{"budget": 8}, {"budget": 8, "values": "sampled"}],
    "low_rank": [{"rank": 3}],
}
N, LAYERS, HEADS, D = 15, 2, 4, 4


def compute_terms(cache):
    return {name: prod(factors.values()) for name, factors in describe_bytes(cache)}


@pytest.mark.parametrize("name", sorted(set(CACHE.names()) - {"state"}))
def test_terms_add_up_to_bytes_of_cache(name):
    lever_input = make_lever_input(length=N, position="rope")
    for options in OPTIONS.get(name, [{}]):
        cache = read_stepwise(lever_input, Choice(name, **options), options.get("rank", 1)).cache
        terms = describe_bytes(cache)
        assert sum(prod(factors.values()) for _, factors in terms) == cache.memory_usage().used_bytes
        assert terms[0][1]["width"] == (3 if name == "low_rank" else D) * 2
        if name == "quantized" and options["bits"] == 4:
            # 15 tokens in groups of 4: three are packed, three tokens are in full precision (KIVI, sec. 3.2)
            assert compute_terms(cache) == {
                "rounded": 3 * LAYERS * HEADS * 4 * 2 * D / 2,
                "scales": 3 * LAYERS * HEADS * 2 * (D + 4) * 4,
                "rest": 3 * LAYERS * HEADS * 2 * D * 4,
            }


def test_model_with_state_and_keys_has_both_terms(monkeypatch):
    model = make_model(layer_pattern=[{"attention": "linear"}, {}], position="none")
    cache, pos = make_cache(None, model.cache_shape, 1, N), torch.arange(N)[None]
    cache.prepare_step([0], pos)
    model.decode(torch.full((1, N), 5), pos, cache, None)
    terms = compute_terms(cache)
    assert sum(terms.values()) == cache.memory_usage().used_bytes
    assert set(terms) == {"numbers", "positions", "state"}
    # a cache of other bytes has no terms
    cache = read_stepwise(make_lever_input(length=5), Choice("static")).cache
    usage = cache.memory_usage()
    monkeypatch.setattr(cache, "memory_usage", lambda: usage._replace(used_bytes=usage.used_bytes + 1))
    assert describe_bytes(cache) == []
