"""Tests of cost/decoding.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.cost.memory_helpers import config_of
from torch.utils._pytree import tree_leaves

from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.core.registry import CACHE
from polyhead.cost.decoding import (
    bytes_by_kv_heads,
    cache_shape,
    count_source_bytes,
    measure_cache,
    token_flops,
)
from polyhead.models import build, preset_config

MODELS = [
    {"position": "rope", "head_dim": 6, "v_head_dim": 4},
    {"attention": "linear"},
    {"feed_forward": "moe"},
    {"n_layers": 5, "layer_pattern": [{"attention": "linear"}, {}, {"block": "lstm"}]},
    {
        "position": "none",
        "layer_pattern": [{}, {"position": "alibi"}, {"attention": {"name": "softmax", "window": 3}}],
    },
]


@pytest.mark.parametrize("changes", MODELS, ids=str)
@pytest.mark.parametrize("name", CACHE.names())
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_a_cache_holds_what_it_says(kind: str, name: str, changes: dict[str, Any]) -> None:
    config, rows, length = config_of(kind, changes), 3, 40
    options = {"rank": 2} if name == "low_rank" else {}
    said = measure_cache(Choice(name, **options), cache_shape(config), rows, length)
    model = build(config, 1).eval()
    if said.unsupported_reason:
        windows = "layer_pattern" in changes and name == "subgen"
        assert (name == "state") == bool(model.cache_shape.kv_layers) or windows
        return
    cache = make_cache(CACHE.check(Choice(name, **options)), model.cache_shape, rows, length)
    pos = torch.arange(length).expand(rows, -1)
    with torch.inference_mode():
        memory = model.encode(torch.zeros(rows, 9, dtype=torch.int64)) if kind == "encoder-decoder" else None
        cache.prepare_step(range(rows), pos)
        model.decode(torch.zeros(rows, length, dtype=torch.int64), pos, cache, memory)
    assert said.nbytes == cache.nbytes
    if memory is not None:
        parts = [x for x in tree_leaves(memory) if x is not None]
        assert count_source_bytes(config, 9) * rows == sum(x.nbytes for x in parts)


@pytest.mark.parametrize("rank", [3, 8, 99])
def test_directions_that_are_the_whole_head_are_counted_as_they_are_held(rank: int) -> None:
    config, choice, length = config_of("decoder", {}), Choice("low_rank", rank=rank), 40
    said, model = measure_cache(choice, cache_shape(config), 1, length), build(config, 1).eval()
    cache = make_cache(CACHE.check(choice), model.cache_shape, 1, length)
    with torch.inference_mode():
        cache.prepare_step([0], torch.arange(length)[None])
        model.decode(torch.zeros(1, length, dtype=torch.int64), torch.arange(length)[None], cache)
    assert said.nbytes == cache.nbytes


def test_heads_that_share_keys_save_in_proportion() -> None:
    config = preset_config("gpt2", 50257)
    assert (
        bytes_by_kv_heads(config, 12)[12] == 12 * 2 * 768 * 4
    )  # all heads, 12 layers, keys and values, fp32
    assert {n: bytes_by_kv_heads(config, 12)[12] / b for n, b in bytes_by_kv_heads(config, 12).items()} == {
        12: 1,
        6: 2,
        4: 3,
        3: 4,
        2: 6,
        1: 12,
    }


def test_a_bounded_cache_bounds_the_operations() -> None:
    config = config_of("decoder", {"max_len": 4096})
    whole, bounded = token_flops(config, 4096), token_flops(config, 4096, cache=Choice("h2o", budget=64))
    assert whole - bounded == 3 * 2 * 2 * 16 * (
        4096 - 64
    )  # layers, a product is two, keys and values, d_model, slots
