"""A static cache whose buffers stay where they are, so that a step can be captured as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.cache.static_helpers import build, feed, held
from torch._dynamo.testing import CompileCounter

import polyhead as ph
from polyhead.cache.factory import make_cache
from polyhead.cache.static import StaticCache, StaticStepLayout
from polyhead.core.choice import Choice
from polyhead.generation.greedy import greedy_decode

PREALLOCATED = Choice("static", preallocate=True)


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model(**changes: Any) -> Any:
    sizes = {"vocab_size": 50, "d_model": 16, "n_layers": 2, "n_heads": 4, "max_len": 32, "kind": "decoder"}
    return ph.build(ph.ModelConfig.model_validate(sizes | changes), seed=1).eval()


def buffers(cache: StaticCache) -> list[int]:
    """Where everything is that a step reads and writes."""
    layout: StaticStepLayout = cache.layers[0].step
    assert layout.padding is not None
    found = [layout.pos, layout.mask, layout.padding, *layout.write_slots, cache.pos]
    found += [x for layer in cache.layers for x in (layer.k, layer.v)]
    return [x.data_ptr() for x in found]


@pytest.mark.parametrize("position", ["rope", "alibi", "sinusoidal"])
@torch.inference_mode()
def test_a_step_is_one_graph_over_the_same_buffers(position: str) -> None:
    """And gives what a cache gives that grows; rows end at different lengths, and one is padding."""
    parts: dict[str, Any] = {
        "position": position,
        "n_kv_heads": 2,
        "feed_forward": "swiglu",
        "norm": "rmsnorm",
    }
    decoder, counter = model(**parts), CompileCounter()
    step = torch.compile(decoder.decode, backend=counter, fullgraph=True, dynamic=False)
    cache, plain = (make_cache(c, decoder.cache_shape, 3, 20) for c in (PREALLOCATED, None))
    prompt, pos = torch.randint(0, 50, (3, 5)), torch.arange(5).repeat(3, 1)
    pos[1, 3:] = -1
    for one in (cache, plain):
        one.prepare_step(range(3), pos)
        decoder.decode(prompt, pos, one)
    found: list[list[int]] = []
    ends = torch.tensor([[5], [3], [5]])
    for t in range(4):
        tokens, pos = torch.randint(0, 50, (3, 1)), ends + t
        if t == 2:
            pos[2] = -1
        for one in (cache, plain):
            one.prepare_step(range(3), pos)
        wanted = decoder.decode(tokens, pos, plain)
        shown = pos[:, 0] >= 0
        torch.testing.assert_close(step(tokens, pos, cache)[shown], wanted[shown], rtol=1e-4, atol=1e-5)
        assert isinstance(cache, StaticCache)
        found.append(buffers(cache))
        ends[2] -= int(t == 2)
    assert found == [found[0]] * 4
    assert counter.frame_count == 1


def test_rows_that_change_places_stay_in_their_buffers() -> None:
    cache, plain = build(3, preallocate=True), build(3)
    stamps = torch.arange(12.0).view(3, 4)
    for one in (cache, plain):
        feed(one, range(3), torch.arange(4).repeat(3, 1), stamps)
        feed(one, range(3), torch.full((3, 1), 4), torch.tensor([[20.0], [21.0], [22.0]]))
    before = buffers(cache)
    for rows in ([2, 0, 0], [1, 1, 0]):
        cache.select(rows)
        plain.select(rows)
        for t in (5, 6):
            new = torch.randn(3, 1)
            kvs, wanted = (feed(one, range(3), torch.full((3, 1), t), new) for one in (cache, plain))
            for row in range(3):
                assert held(kvs, row) == held(wanted, row)
        assert buffers(cache) == before
        for one in (cache, plain):
            for row in range(3):
                one.lengths[row] = 5


def test_more_or_fewer_rows_are_other_buffers_and_right() -> None:
    cache, plain = build(2, preallocate=True), build(2)
    for one in (cache, plain):
        feed(one, range(2), torch.zeros(2, 1, dtype=torch.int64), torch.tensor([[1.0], [2.0]]))
        one.append_rows(1)
        one.select([2, 1, 0])
    pos = torch.tensor([[0], [1], [1]])
    kvs, wanted = (feed(one, range(3), pos, torch.tensor([[7.0], [8.0], [9.0]])) for one in (cache, plain))
    assert [held(kvs, row) for row in range(3)] == [held(wanted, row) for row in range(3)]
    for one in (cache, plain):
        one.select([1])
    new = torch.tensor([[2]]), torch.tensor([[5.0]])
    kvs, wanted = (feed(one, range(1), *new) for one in (cache, plain))
    assert held(kvs, 0) == held(wanted, 0)


def test_texts_are_those_of_the_default() -> None:
    decoder = model(position="rope")
    for length in (1, 4):
        prompt = list(range(1, 1 + length))
        wanted = greedy_decode(decoder, prompt, max_new_tokens=9)
        assert greedy_decode(decoder, prompt, max_new_tokens=9, cache=PREALLOCATED) == wanted


def test_all_slots_are_there_from_the_start() -> None:
    cache = build(2, preallocate=True)
    assert cache.layers[0].k.size(2) == cache.max_len + 1
