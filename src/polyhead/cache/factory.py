"""Build the cache of a model, of several parts if its layers or models need different ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.cache import Cache, CacheMemory, CacheShape, LayerCache


class CompositeCache:
    """One cache per model, or per kind of layer, all with the same rows.

    ``lossless`` and ``rewinds`` are true if they are true of every part. ``layer_ids`` gives the index in the
    model of each layer of the parts, where the layers of the parts are not consecutive.
    """

    name = "composite"

    def __init__(self, caches: Sequence[Cache], layer_ids: Sequence[int] | None = None) -> None:
        self.caches = caches
        all_layers: list[LayerCache] = [layer for part in caches for layer in part.layers]
        self.layers = (
            all_layers
            if layer_ids is None
            else [all_layers[layer_ids.index(i)] for i in range(len(all_layers))]
        )
        self.lossless = all(part.lossless for part in caches)
        self.rewinds = all(part.rewinds for part in caches)
        # if one part runs out of memory the step is prepared again: parts that can rewind are prepared first
        self.leaves: list[Cache] = []
        for part in caches:
            self.leaves += part.leaves if isinstance(part, CompositeCache) else [part]
        self.leaves.sort(key=lambda leaf: not leaf.rewinds)

    @property
    def block_size(self) -> int:
        return max(part.block_size for part in self.caches)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.caches)

    @property
    def num_rows(self) -> int:
        return self.caches[0].num_rows

    def memory_usage(self) -> CacheMemory:
        """Sum over all parts; the parts may peak at different times, so the peak is an upper bound."""
        return CacheMemory(*map(sum, zip(*(part.memory_usage() for part in self.caches), strict=True)))

    def prepare_step(self, rows: Sequence[int], pos: Tensor) -> None:
        for leaf in self.leaves:
            leaf.prepare_step(rows, pos)

    def free_tokens(self, extra_rows: int = 0) -> int:
        return min(part.free_tokens(extra_rows) for part in self.caches)

    def append_rows(self, n: int) -> None:
        for part in self.caches:
            part.append_rows(n)

    def fork(self, src: int, dst: int) -> None:
        for part in self.caches:
            part.fork(src, dst)

    def release(self, row: int) -> None:
        for part in self.caches:
            part.release(row)

    def select(self, rows: Sequence[int]) -> None:
        for part in self.caches:
            part.select(rows)

    def export_rows(self, rows: Sequence[int]) -> dict[str, Tensor]:
        return {
            f"caches.{i}.{name}": x
            for i, part in enumerate(self.caches)
            for name, x in part.export_rows(rows).items()
        }

    def import_rows(self, tensors: Mapping[str, Tensor]) -> None:
        n_old, parts = self.num_rows, [dict[str, Tensor]() for _ in self.caches]
        for name, x in tensors.items():
            match = re.fullmatch(r"caches\.(\d+)\.(.+)", name)
            if match is None or int(match[1]) >= len(parts):
                raise UserError(
                    f"cache of {len(parts)} parts: the imported rows have {name!r}, which is of none"
                )
            parts[int(match[1])][match[2]] = x
        for i, (part, own_tensors) in enumerate(zip(self.caches, parts, strict=True)):
            try:
                part.import_rows(own_tensors)
            except UserError:
                for earlier in self.caches[:i]:
                    earlier.select(range(n_old))
                raise


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
