"""What a cache of layers that keep different things is made of, and what it says of itself."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from polyhead.cache.joint import JointCache
from polyhead.cache.make import make_cache
from polyhead.cache.paged import PagedCache
from polyhead.cache.state import StateCache
from polyhead.cache.static import StaticCache
from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.models import build
from polyhead.registry import CACHE, Choice

NARROW = {"attention": {"name": "softmax", "window": 9}}
TURNS = [{"attention": "linear"}, {}, {"block": "lstm"}, NARROW]


def shape(turns: list[dict[str, Any]] = TURNS) -> Any:
    config = ModelConfig(
        kind="decoder", vocab_size=9, d_model=8, n_heads=2, d_ff=8, max_len=16, n_layers=5, pattern=turns
    )
    return build(config, seed=1).cache_shape


def made(choice: Choice | None, rows: int = 2) -> JointCache:
    cache = make_cache(choice, shape(), rows, 16)
    assert isinstance(cache, JointCache)
    return cache


def test_each_layer_says_what_it_keeps() -> None:
    assert shape().keyed == [1, 3]
    # sums of each head, (D, Dv + 1); h and c
    assert shape().states == (((2, 4, 5),), None, ((8,), (8,)), None, ((2, 4, 5),))
    assert [shape().of(some).windows for some in ([1], [3, 0])] == [(None,), (shape().windows[3], None)]
    assert shape().of([0, 2]).states == (((2, 4, 5),), ((8,), (8,)))
    assert shape([{}]).keyed == [0, 1, 2, 3, 4] and shape([{"attention": "linear"}]).keyed == []


def test_keys_and_values_are_kept_as_chosen_and_states_beside_them() -> None:
    plain, paged = made(None), made(Choice("paged", block=4, blocks=5))
    assert [type(part) for part in plain.parts] == [StaticCache, StateCache]
    assert [type(part) for part in paged.parts] == [PagedCache, StateCache]
    for cache in (plain, paged):
        keys, states = (list(part.layers) for part in cache.parts)
        wanted = [states[0], keys[0], states[1], keys[1], states[2]]
        assert all(layer is other for layer, other in zip(cache.layers, wanted, strict=True))
    assert (paged.grain, paged.room(), paged.parts[1].room()) == (4, 20, sys.maxsize)
    state = 4 * (2 * 2 * 4 * 5 + 16)  # two sums and h, c, in fp32
    assert plain.parts[1].nbytes == 2 * state and plain.nbytes == plain.parts[0].nbytes + 2 * state


@pytest.mark.parametrize("name", sorted(set(CACHE.names()) - {"state", "subgen"}))
def test_it_loses_nothing_where_its_keys_and_values_do_not_and_never_rewinds(name: str) -> None:
    cache = made(Choice(name))
    assert (cache.lossless, cache.rewinds) == (CACHE.get(name).lossless, False)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice("state"), "cache 'state' keeps a state, layers of this model keep keys and values: use cache 'static'"),
        (Choice("subgen"), "asks how far a token is away, for its window"),
        (Choice("window", window=8), "sees a window of 9"),
    ],
)  # fmt: skip
def test_a_cache_that_does_not_serve_the_layers_it_is_for_is_refused(choice: Choice, said: str) -> None:
    with pytest.raises(UserError, match=said):
        made(choice)


def test_where_no_model_keeps_keys_and_values_the_choice_is_for_their_states() -> None:
    linear, recurrent = (shape([turn]) for turn in ({"attention": "linear"}, {"block": "gru"}))
    both = linear._replace(beside=(recurrent,))
    for choice in (None, Choice("state")):
        cache = make_cache(choice, both, 2, 16)
        assert isinstance(cache, JointCache)
        assert [type(part) for part in cache.parts] == [StateCache, StateCache]
    with pytest.raises(UserError, match="cache 'h2o' keeps keys and values"):
        make_cache(Choice("h2o"), both, 2, 16)
