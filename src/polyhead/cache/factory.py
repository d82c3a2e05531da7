"""Build the cache of a model."""

from __future__ import annotations

from polyhead.cache.composite import CompositeCache
from polyhead.core.choice import Choice
from polyhead.core.registry import CACHE
from polyhead.nn.cache import Cache, CacheShape


def make_cache(choice: Choice | None, shape: CacheShape, n_rows: int, max_len: int) -> Cache:
    """Build the chosen cache, or the default one, for the layers with keys and values.

    Layers with a recurrent state get a state cache. If no layer has keys and values, the choice applies to
    the states.
    """
    kv_layers, parts, layer_ids = shape.kv_layers, shape.models, None
    if not shape.extra and 0 < len(kv_layers) < shape.n_layers:
        state_layers = [i for i in range(shape.n_layers) if i not in kv_layers]
        parts = (shape.select_layers(kv_layers), shape.select_layers(state_layers))
        layer_ids = [*kv_layers, *state_layers]
    if len(parts) > 1:
        has_kv = any(part.kv_layers for part in parts)
        choices = [choice if part.kv_layers or not has_kv else None for part in parts]
        pairs = zip(choices, parts, strict=True)
        return CompositeCache(
            [make_cache(part_choice, part, n_rows, max_len) for part_choice, part in pairs], layer_ids
        )
    if choice is None:
        choice = Choice("static" if kv_layers else "state")
    cache: Cache = CACHE.build(choice, shape, n_rows, max_len)
    return cache
