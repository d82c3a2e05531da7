"""What a cache of layers that keep different things is made of, and what it says of itself."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from polyhead.cache.composite import CompositeCache
from polyhead.cache.factory import make_cache
from polyhead.cache.paged import PagedCache
from polyhead.cache.recurrent_state import StateCache
from polyhead.cache.static import StaticCache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.models import build

NARROW = {"attention": {"name": "softmax", "window": 9}}
TURNS = [{"attention": "linear"}, {}, {"block": "lstm"}, NARROW]


def shape(turns: list[dict[str, Any]] = TURNS) -> Any:
    config = ModelConfig(
        kind="decoder",
        vocab_size=9,
        d_model=8,
        n_heads=2,
        d_ff=8,
        max_len=16,
        n_layers=5,
        layer_pattern=turns,
    )
    return build(config, seed=1).cache_shape


def made(choice: Choice | None, rows: int = 2) -> CompositeCache:
    cache = make_cache(choice, shape(), rows, 16)
    assert isinstance(cache, CompositeCache)
    return cache


def test_each_layer_says_what_it_keeps() -> None:
    assert shape().kv_layers == [1, 3]
    # sums of each head, (D, Dv + 1); h and c
    assert shape().states == (((2, 4, 5),), None, ((8,), (8,)), None, ((2, 4, 5),))
    assert [shape().select_layers(some).windows for some in ([1], [3, 0])] == [
        (None,),
        (shape().windows[3], None),
    ]
    assert shape().select_layers([0, 2]).states == (((2, 4, 5),), ((8,), (8,)))
    assert shape([{}]).kv_layers == [0, 1, 2, 3, 4] and shape([{"attention": "linear"}]).kv_layers == []


def test_keys_and_values_are_kept_as_chosen_and_states_beside_them() -> None:
    plain, paged = made(None), made(Choice("paged", block_size=4, max_blocks=5))
    assert [type(part) for part in plain.caches] == [StaticCache, StateCache]
    assert [type(part) for part in paged.caches] == [PagedCache, StateCache]
    for cache in (plain, paged):
        keys, states = (list(part.layers) for part in cache.caches)
        wanted = [states[0], keys[0], states[1], keys[1], states[2]]
        assert all(layer is other for layer, other in zip(cache.layers, wanted, strict=True))
    assert (paged.block_size, paged.free_tokens(), paged.caches[1].free_tokens()) == (4, 20, sys.maxsize)
    state = 4 * (2 * 2 * 4 * 5 + 16)  # two sums and h, c, in fp32
    assert plain.caches[1].nbytes == 2 * state and plain.nbytes == plain.caches[0].nbytes + 2 * state


@pytest.mark.parametrize("name", sorted(set(CACHE.names()) - {"state", "subgen"}))
def test_it_loses_nothing_where_its_keys_and_values_do_not_and_never_rewinds(name: str) -> None:
    cache = made(Choice(name))
    assert (cache.lossless, cache.rewinds) == (CACHE.get(name).lossless, False)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice("state"), "cache 'state' stores a recurrent state, but layers of this model have keys and "
                          "values: "
                "use cache 'static'"),
        (Choice("subgen"), "depends on distances, for its window"),
        (Choice("window", window=8), "has a window of 9"),
    ],
)  # fmt: skip
def test_a_cache_that_does_not_serve_the_layers_it_is_for_is_refused(choice: Choice, said: str) -> None:
    with pytest.raises(UserError, match=said):
        made(choice)


def test_where_no_model_keeps_keys_and_values_the_choice_is_for_their_states() -> None:
    linear, recurrent = (shape([turn]) for turn in ({"attention": "linear"}, {"block": "gru"}))
    both = linear._replace(extra=(recurrent,))
    for choice in (None, Choice("state")):
        cache = make_cache(choice, both, 2, 16)
        assert isinstance(cache, CompositeCache)
        assert [type(part) for part in cache.caches] == [StateCache, StateCache]
    with pytest.raises(UserError, match="cache 'h2o' stores keys and values"):
        make_cache(Choice("h2o"), both, 2, 16)
