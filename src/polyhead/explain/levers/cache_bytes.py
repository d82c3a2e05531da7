"""The bytes of a cache as a sum of products: what it stores, of how many tokens, layers and heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from torch import Tensor

from polyhead.cache.composite import CompositeCache
from polyhead.cache.contiguous import DynamicCache, StaticCache
from polyhead.cache.h2o import H2OCache
from polyhead.cache.low_rank import LowRankCache
from polyhead.cache.paged import PagedCache
from polyhead.cache.quantized import QuantizedCache
from polyhead.cache.recurrent_state import StateCache
from polyhead.cache.sliding_window import WindowCache
from polyhead.cache.subgen import SampledSubGenLayer, SubGenCache
from polyhead.nn.cache import Cache

Factors = Mapping[str, float]
Terms = dict[str, Factors]
"""What is stored -> the factors of its bytes by name."""

_POSITION_BYTES, _FLOAT_BYTES = 8, 4  # of positions, int64; of scores and counts, fp32


def describe_bytes(cache: Cache) -> list[list[Any]]:
    """The terms, [what, factors], of ``memory_usage().used_bytes``; none of a cache of another package."""
    leaves: list[Any] = cache.leaves if isinstance(cache, CompositeCache) else [cache]
    terms = [term for leaf in leaves for term in _list_terms(leaf).items() if prod(term[1].values())]
    total = sum(prod(factors.values()) for _, factors in terms)
    return [[*term] for term in terms] if total == cache.memory_usage().used_bytes else []


def _list_terms(cache: Cache) -> Terms:
    return next((list_terms(cache) for kind, list_terms in _CACHES.items() if isinstance(cache, kind)), {})


def _count_numbers(count: Factors, k: Tensor, v: Tensor) -> Factors:
    """The factors ``count``, and those of keys and values (row, K, slot, D)."""
    return {**count, "heads": k.size(1), "width": k.size(-1) + v.size(-1), "bytes": k.element_size()}


def _describe_slots(cache: StaticCache | DynamicCache | WindowCache) -> Terms:
    """Slots of which all layers have the same positions."""
    n = sum(cache.lengths) if isinstance(cache, StaticCache) else int((cache.pos >= 0).sum())
    tokens = {"tokens": n}
    layers: list[Any] = list(cache.layers)
    numbers = _count_numbers(tokens | {"layers": len(layers)}, layers[0].k, layers[0].v)
    return {"numbers": numbers, "positions": tokens | {"bytes": _POSITION_BYTES}}


def _describe_paged(cache: PagedCache) -> Terms:
    count = {"tokens": cache.block_stats().n_tokens, "layers": len(cache.layers)}
    return {"numbers": _count_numbers(count, cache.layers[0].k, cache.layers[0].v)}


def _describe_quantized(cache: QuantizedCache) -> Terms:
    layer: Any = cache.layers[0]
    group, n_layers = cache.group, {"layers": len(cache.layers)}
    tail = {"tokens": sum(n % group for n in cache.lengths), **n_layers}
    rest = _count_numbers(tail, layer.k_tail, layer.v_tail)
    groups = {"groups": sum(n // group for n in cache.lengths), **n_layers, "heads": rest["heads"]}
    return {
        "rounded": {**groups, "group": group, "width": rest["width"], "byte_share": layer.bits / 8},
        "scales": {**groups, "scales": 2 * (layer.k.size(-1) + group), "bytes": rest["bytes"]},
        "rest": rest,
    }


def _describe_h2o(cache: H2OCache) -> Terms:
    layer = cache.layers[0]
    slots = {"slots": sum(min(n, layer.slots - 1) for n in cache.lengths), "layers": len(cache.layers)}
    marks = slots | {"heads": layer.k.size(1), "bytes": _POSITION_BYTES + _FLOAT_BYTES}
    return {"numbers": _count_numbers(slots, layer.k, layer.v), "scores": marks}


def _describe_subgen(cache: SubGenCache) -> Terms:
    """Heads differ in how many slots they use, so all are counted together."""
    layer = cache.layers[0]
    slots = {"all_slots": int(sum((x.pos >= 0).sum() for x in cache.layers))}
    numbers = {**_count_numbers(slots, layer.k, layer.v), "heads": 1}
    terms: Terms = {"numbers": numbers, "counts": slots | {"bytes": _POSITION_BYTES + _FLOAT_BYTES}}
    sampled = [x for x in cache.layers if isinstance(x, SampledSubGenLayer)]
    clusters = int(sum((x.count[:, :, : x.n_clusters] > 0).sum() for x in sampled))
    sizes = {"head_dim": layer.k.size(-1), "bytes": layer.k.element_size()}
    terms["centres"] = {"clusters": clusters, **sizes}
    sums = int(sum((x.norm_sum > 0).sum() for x in sampled))
    return terms | {"norms": {"all_heads": sums, "bytes": _FLOAT_BYTES}}


def _describe_low_rank(cache: LowRankCache) -> Terms:
    bases = [layer.basis for layer in cache.layers if layer.basis is not None]
    terms = _describe_slots(cache.base_cache)
    for i, role in enumerate(("k_basis", "v_basis")):
        if bases:
            heads, dim, rank = bases[0][i].shape
            itemsize = bases[0][i].element_size()
            terms[role] = {
                "layers": len(bases),
                "heads": heads,
                "head_dim": dim,
                "rank": rank,
                "bytes": itemsize,
            }
    return terms


def _describe_state(cache: StateCache) -> Terms:
    tensors = [x for layer in cache.layers for x in layer.tensors]
    numbers = sum(x[0].numel() for x in tensors)
    return {"state": {"state_numbers": numbers, "bytes": tensors[0].element_size()}}


_CACHES: dict[type, Callable[[Any], Terms]] = {
    StaticCache: _describe_slots,
    DynamicCache: _describe_slots,
    WindowCache: _describe_slots,
    PagedCache: _describe_paged,
    QuantizedCache: _describe_quantized,
    H2OCache: _describe_h2o,
    SubGenCache: _describe_subgen,
    LowRankCache: _describe_low_rank,
    StateCache: _describe_state,
}
