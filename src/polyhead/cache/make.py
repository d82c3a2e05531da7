"""The cache that a model wants."""

from __future__ import annotations

from polyhead.cache.base import Cache, CacheShape
from polyhead.cache.joint import JointCache
from polyhead.registry import CACHE, Choice


def make_cache(choice: Choice | None, shape: CacheShape, n_rows: int, max_len: int) -> Cache:
    """The chosen cache, or the plain one, for keys and values; a state that is kept beside them has its own.

    Where nothing keeps keys and values, the choice is for the states.
    """
    keyed, parts, places = shape.keyed, shape.members, None
    if not shape.beside and 0 < len(keyed) < shape.n_layers:
        others = [i for i in range(shape.n_layers) if i not in keyed]
        parts, places = (shape.of(keyed), shape.of(others)), [*keyed, *others]
    if len(parts) > 1:
        some = any(part.keyed for part in parts)
        wanted = [choice if part.keyed or not some else None for part in parts]
        pairs = zip(wanted, parts, strict=True)
        return JointCache([make_cache(own, part, n_rows, max_len) for own, part in pairs], places)
    if choice is None:
        choice = Choice("static" if keyed else "state")
    cache: Cache = CACHE.build(choice, shape, n_rows, max_len)
    return cache
