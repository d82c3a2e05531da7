"""The bytes of every cache are the sum of what it is described to store."""

from __future__ import annotations

from math import prod

import pytest
import torch
from tests.explain.levers.levers_helpers import make_input, make_model

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


@pytest.mark.parametrize("name", sorted(set(CACHE.names()) - {"state"}))
def test_the_terms_add_up_to_the_bytes_of_every_cache(name: str) -> None:
    lever_input = make_input(make_model(position="rope"), length=N)
    for options in OPTIONS.get(name, [{}]):
        cache = read_stepwise(lever_input, Choice(name, **options), options.get("rank", 1)).cache
        terms = describe_bytes(cache)
        assert sum(prod(factors.values()) for _, factors in terms) == cache.memory_usage().used_bytes
        assert terms[0][1]["width"] == (3 if name == "low_rank" else D) * 2


def test_rounded_numbers_have_their_bits_and_each_group_its_scales() -> None:
    """15 tokens in groups of 4: three are packed, and three tokens are in full precision (KIVI, sec. 3.2)."""
    lever_input = make_input(make_model(position="rope"), length=N)
    cache = read_stepwise(lever_input, Choice("quantized", bits=4, group=4)).cache
    terms = {name: prod(factors.values()) for name, factors in describe_bytes(cache)}
    assert terms == {
        "rounded": 3 * LAYERS * HEADS * 4 * 2 * D / 2,
        "scales": 3 * LAYERS * HEADS * 2 * (D + 4) * 4,
        "rest": 3 * LAYERS * HEADS * 2 * D * 4,
    }


def test_a_model_with_a_state_and_keys_has_the_terms_of_both() -> None:
    model = make_model(layer_pattern=[{"attention": "linear"}, {}], position="none")
    cache = make_cache(None, model.cache_shape, 1, N)
    pos = torch.arange(N)[None]
    cache.prepare_step([0], pos)
    model.decode(torch.full((1, N), 5), pos, cache, None)
    terms = describe_bytes(cache)
    assert sum(prod(factors.values()) for _, factors in terms) == cache.memory_usage().used_bytes
    assert {name for name, _ in terms} == {"numbers", "positions", "state"}


def test_a_cache_that_counts_otherwise_has_no_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = read_stepwise(make_input(make_model(), length=5), Choice("static")).cache
    used = cache.memory_usage()
    monkeypatch.setattr(cache, "memory_usage", lambda: used._replace(used_bytes=used.used_bytes + 1))
    assert describe_bytes(cache) == []
