"""Tests of cache/factory.py."""

from __future__ import annotations

import pytest
import torch

from polyhead.cache.factory import make_cache
from polyhead.cache.recurrent_state import StateCache
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape

SIZES = ((2, 3), (4,))


def shape(state=SIZES, layers=2, dtype=torch.float32):
    return CacheShape(layers, 1, 1, 1, dtype, torch.device("cpu"), (state,) * layers)


def test_the_cache_that_fits_is_made_and_one_that_does_not_says_which_does():
    assert isinstance(make_cache(None, shape(), 1, 9), StateCache)
    with pytest.raises(
        UserError,
        match="cache 'state' stores a recurrent state, but layers of this model have keys and values: "
        "use cache 'static'",
    ):
        CACHE.build(Choice("state"), shape(state=None), 1, 9)
    with pytest.raises(
        UserError,
        match="cache 'static' stores keys and values, but this model has a recurrent state: use cache "
        "'state'",
    ):
        CACHE.build(Choice("static"), shape(), 1, 9)
