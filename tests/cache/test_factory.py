import sys

import pytest
import torch
from tests.cache.cache_helpers import SHAPE

from polyhead import Choice, ModelConfig, build
from polyhead.cache.contiguous import StaticCache
from polyhead.cache.factory import make_cache
from polyhead.cache.paged import PagedCache
from polyhead.cache.recurrent_state import StateCache
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import Window

WINDOW = {"attention": {"name": "softmax", "window": 9}}
PAGED_CHOICE = Choice("paged", block_size=4, max_blocks=5)
MIXED_LAYERS = [{"attention": "linear"}, {}, {"block": "lstm"}, WINDOW]


def make_shape(pattern=MIXED_LAYERS):
    sizes = {"vocab_size": 9, "d_model": 8, "n_heads": 2, "d_ff": 8, "max_len": 16, "n_layers": 5}
    return build(ModelConfig(kind="decoder", layer_pattern=pattern, **sizes), seed=1).cache_shape


def test_parts_follow_the_choice_and_the_layers():
    shape = make_shape()
    assert shape.kv_layers == [1, 3]
    # sums of each head, (D, Dv + 1); h and c
    assert shape.states == (((2, 4, 5),), None, ((8,), (8,)), None, ((2, 4, 5),))
    assert shape.select_layers([1]).windows == (None,)
    assert shape.select_layers([3, 0]).windows == (shape.windows[3], None)
    assert shape.select_layers([0, 2]).states == (((2, 4, 5),), ((8,), (8,)))
    assert make_shape([{}]).kv_layers == [0, 1, 2, 3, 4]
    assert make_shape([{"attention": "linear"}]).kv_layers == []
    plain, paged_cache = (make_cache(choice, make_shape(), 2, 16) for choice in (None, PAGED_CHOICE))
    assert [type(part) for part in plain.caches] == [StaticCache, StateCache]
    assert [type(part) for part in paged_cache.caches] == [PagedCache, StateCache]
    for cache in (plain, paged_cache):
        kv, states = (list(part.layers) for part in cache.caches)
        expected = [states[0], kv[0], states[1], kv[1], states[2]]
        assert all(layer is other for layer, other in zip(cache.layers, expected, strict=True))
    assert (paged_cache.block_size, paged_cache.free_tokens()) == (4, 20)
    assert paged_cache.caches[1].free_tokens() == sys.maxsize
    state = 4 * (2 * 2 * 4 * 5 + 16)  # two sums and h, c, in fp32
    assert plain.caches[1].nbytes == 2 * state and plain.nbytes == plain.caches[0].nbytes + 2 * state


@pytest.mark.parametrize("name", sorted(set(CACHE.names()) - {"state", "subgen"}))
def test_composite_is_lossless_and_never_rewinds(name):
    cache = make_cache(Choice(name), make_shape(), 2, 16)
    assert (cache.lossless, cache.rewinds) == (CACHE.get(name).lossless, False)


def test_choice_applies_to_states_without_kv():
    linear, recurrent = (make_shape([layer]) for layer in ({"attention": "linear"}, {"block": "gru"}))
    shape = linear._replace(extra=(recurrent,))
    for choice in (None, Choice("state")):
        assert [type(part) for part in make_cache(choice, shape, 2, 16).caches] == [StateCache, StateCache]
    with pytest.raises(UserError, match="cache 'h2o' stores keys and values"):
        make_cache(Choice("h2o"), shape, 2, 16)


def test_incompatible_caches_are_refused():
    for choice, message in (
        (Choice("state"), "cache 'state' stores a recurrent state, but layers of this model have keys"),
        (Choice("subgen"), "depends on distances, for its window"),
        (Choice("window", window=8), "has a window of 9"),
    ):
        with pytest.raises(UserError, match=message):
            make_cache(choice, make_shape(), 2, 16)


def test_wrong_cache_kind_names_the_right_one():
    recurrent, softmax = (
        CacheShape(2, 1, 1, 1, torch.float32, torch.device("cpu"), (states,) * 2)
        for states in (((2, 3), (4,)), None)
    )
    assert isinstance(make_cache(None, recurrent, 1, 9), StateCache)
    message = "cache 'state' stores a recurrent state, but .* have keys and values: use cache 'static'"
    with pytest.raises(UserError, match=message):
        CACHE.build(Choice("state"), softmax, 1, 9)
    message = "cache 'static' stores keys and values, but .* a recurrent state: use cache 'state'"
    with pytest.raises(UserError, match=message):
        CACHE.build(Choice("static"), recurrent, 1, 9)


H2O = "expected a budget of at least"
RANGE = "out of range: expected at least"
WINDOW_MESSAGE = "has a window of 6 and a sink of 1: set at least window=6, sink=1"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("choice", "changes", "message"),
    [
        (Choice("static", chunk=0), {}, f"chunk of cache 'static': 0 is {RANGE} 1"),
        (Choice("paged", block_size=0), {}, f"block_size of cache 'paged': 0 is {RANGE} 1"),
        (Choice("paged", expected_len=0), {}, f"expected_len of cache 'paged': 0 is {RANGE} 1"),
        (Choice("paged", max_blocks=0), {}, f"max_blocks of cache 'paged': 0 is {RANGE} 1"),
        (Choice("quantized", group=3), {}, "group is 3; it must be even, since two numbers can share a byte"),
        (Choice("low_rank", rank=0), {}, f"rank of cache 'low_rank': 0 is {RANGE} 1"),
        (Choice("h2o", budget=4, recent=3, sink=2), {}, H2O),
        (Choice("h2o", recent=0), {}, f"recent of .*: 0 is {RANGE} 1"),
        (Choice("h2o", sink=-1), {}, f"sink of .*: -1 is {RANGE} 0"),
        (Choice("h2o", budget=1), {}, H2O),
        (
            Choice("subgen", budget=4, recent=4),
            {},
            "a budget of 4 slots must exceed its 4",
        ),
        (Choice("subgen", recent=0), {}, f"recent of .*: 0 is {RANGE} 1"),
        (Choice("subgen", radius=-1.0), {}, f"radius of .*: -1.0 is {RANGE} 0"),
        (Choice("subgen", budget=4, recent=3, values="sampled"), {}, "1 slot, but values: sampled needs 2"),
        (Choice("subgen"), {"needs_distances": True}, r"for its position \(alibi, .*\): use cache 'h2o'"),
        (Choice("subgen"), {"windows": (Window(4), None)}, "for its window: use cache 'h2o'"),
        (Choice("window", window=5, sink=1), {"windows": (None, Window(6, 1))}, WINDOW_MESSAGE),
        (Choice("window", window=9, sink=0), {"windows": (None, Window(6, 1))}, WINDOW_MESSAGE),
        (Choice("window", window=0), {}, f"window of .*: 0 is {RANGE} 1"),
        (Choice("window", sink=-1), {}, f"sink of .*: -1 is {RANGE} 0"),
    ],
    ids=str,
)
def test_invalid_options_and_models_are_refused(choice, changes, message):
    with pytest.raises(UserError, match=message):
        CACHE.build(choice, SHAPE._replace(**changes), 1, 9)
