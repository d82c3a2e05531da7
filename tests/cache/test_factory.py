"""Tests of cache/factory.py."""

import pytest
import torch

from polyhead.cache.factory import make_cache
from polyhead.cache.recurrent_state import StateCache
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape


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
