"""The cache that a model wants."""

from __future__ import annotations

from polyhead.cache.base import Cache, CacheShape
from polyhead.cache.joint import JointCache
from polyhead.registry import CACHE, Choice


def make_cache(choice: Choice | None, shape: CacheShape, n_rows: int, max_len: int) -> Cache:
    """The chosen cache, or the plain one of a model that keeps keys and values, or a state; one for each of several models."""
    if shape.beside:
        shapes = shape._replace(beside=()), *shape.beside
        return JointCache([make_cache(choice, one, n_rows, max_len) for one in shapes])
    if choice is None:
        choice = Choice("static" if shape.state is None else "state")
    cache: Cache = CACHE.build(choice, shape, n_rows, max_len)
    return cache
