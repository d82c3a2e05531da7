"""The cache that a model wants."""

from __future__ import annotations

from polyhead.cache.base import Cache, CacheShape
from polyhead.registry import CACHE, Choice


def make_cache(choice: Choice | None, shape: CacheShape, n_rows: int, max_len: int) -> Cache:
    """The chosen cache, or the plain one of a model that keeps keys and values, or a state."""
    if choice is None:
        choice = Choice("static" if shape.state is None else "state")
    cache: Cache = CACHE.build(choice, shape, n_rows, max_len)
    return cache
