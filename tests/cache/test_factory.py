import pytest
import torch
from tests.cache.cache_helpers import SHAPE

from polyhead.cache.factory import make_cache
from polyhead.cache.recurrent_state import StateCache
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape
from polyhead.nn.kv import Window


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
WINDOW = "has a window of 6 and a sink of 1: set at least window=6, sink=1"


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
        (Choice("window", window=5, sink=1), {"windows": (None, Window(6, 1))}, WINDOW),
        (Choice("window", window=9, sink=0), {"windows": (None, Window(6, 1))}, WINDOW),
        (Choice("window", window=0), {}, f"window of .*: 0 is {RANGE} 1"),
        (Choice("window", sink=-1), {}, f"sink of .*: -1 is {RANGE} 0"),
    ],
    ids=str,
)
def test_invalid_options_and_models_are_refused(choice, changes, message):
    with pytest.raises(UserError, match=message):
        CACHE.build(choice, SHAPE._replace(**changes), 1, 9)
