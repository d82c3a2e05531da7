"""Transfer of cached rows between processes: prefill in one, decode in another.

``export_cache`` writes rows of any cache as safetensors, ``import_cache`` appends them to a cache of the same
kind and options, made for the same model. Decoding then gives what it would have given in the first process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from safetensors import SafetensorError
from safetensors.torch import load, save

from polyhead.core.errors import UserError
from polyhead.nn.cache import Cache

FORMAT = "polyhead-cache-1"


def export_cache(cache: Cache, rows: Sequence[int]) -> bytes:
    """Write some rows of a cache, between two steps, as safetensors: the content of a file or a request."""
    # cloned, because tensors of a safetensors file may not share memory
    tensors = {name: x.detach().cpu().contiguous().clone() for name, x in cache.export_rows(rows).items()}
    return save(tensors, {"format": FORMAT, "cache": cache.name})


def import_cache(cache: Cache, data: bytes) -> range:
    """Append the rows that ``export_cache`` wrote and return their numbers; UserError if they do not fit.

    The file has no weights: the model, its weights and its tokenizer must be those of the exporting process.
    The encoder's output is not in a cache; ``model.encode`` computes it again from the source.
    """
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise UserError(f"this is no exported cache: {error}") from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = header.get("__metadata__") or {}
    if metadata.get("format") != FORMAT:
        raise UserError(
            f"this is no exported cache: its format is {metadata.get('format')!r}, expected {FORMAT!r}"
        )
    if metadata.get("cache") != cache.name:
        raise UserError(
            f"these rows are those of cache {metadata.get('cache')!r}, but this cache is {cache.name!r}: "
            "choose the same cache in both processes"
        )
    n_old = cache.num_rows
    cache.import_rows(tensors)
    return range(n_old, cache.num_rows)
