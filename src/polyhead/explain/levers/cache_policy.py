"""Each cache policy as a lever: the text read through it, what it evicts, and the error of what it stores.

The bytes of a cache are a sum of products: what it stores, of how many tokens, layers and heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import prod
from typing import Any

import torch
from torch import Tensor

from polyhead.cache.composite import CompositeCache
from polyhead.cache.contiguous import DynamicCache, StaticCache
from polyhead.cache.factory import make_cache
from polyhead.cache.h2o import H2OCache
from polyhead.cache.low_rank import LowRankCache
from polyhead.cache.paged import PagedCache
from polyhead.cache.policies import select_policies
from polyhead.cache.quantized import QuantizedCache
from polyhead.cache.recurrent_state import StateCache
from polyhead.cache.sliding_window import WindowCache
from polyhead.cache.subgen import SampledSubGenLayer, SubGenCache
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.explain.levers.comparison import SHOWN_TERMS, round_number
from polyhead.explain.levers.interface import Field, Lever, LeverOutput, Setting
from polyhead.explain.levers.lever_input import LeverInput
from polyhead.explain.levers.stepwise import find_stepwise_obstacle, read_stepwise
from polyhead.models import CausalLM, Seq2Seq
from polyhead.nn.cache import Cache, CacheShape

Factors = Mapping[str, float]
Terms = dict[str, Factors]
"""What is stored -> the factors of its bytes by name."""

_POSITION_BYTES, _FLOAT_BYTES = 8, 4  # of positions, int64; of scores and counts, fp32


def describe_bytes(cache: Cache) -> list[list[Any]]:
    """The terms, [what, factors], of ``memory_usage().used_bytes``; none of a cache of another package."""
    leaves: list[Any] = cache.leaves if isinstance(cache, CompositeCache) else [cache]
    terms = [term for leaf in leaves for term in _list_byte_terms(leaf).items() if prod(term[1].values())]
    total = sum(prod(factors.values()) for _, factors in terms)
    return [[*term] for term in terms] if total == cache.memory_usage().used_bytes else []


def _list_byte_terms(cache: Cache) -> Terms:
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


# families and shares of the length that a file has
_CASES = {
    "static": (1,),
    "8 bits": (1,),
    "4 bits": (1,),
    "window+sink": (Fraction(1, 2), Fraction(1, 4)),
    "window": (Fraction(1, 2),),
    "h2o": (Fraction(1, 2), Fraction(1, 4)),
    "subgen": (Fraction(1, 2),),
}
_MAX_OPTION = 4096  # largest number of an option
_SHORT_TOP = 3  # tokens listed of each row, since there are many cases


def read_through_cache(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    """The logits of the text read through a cache, one token per step, with what the cache did.

    A low-rank cache fits its directions on the first step, which therefore reads as many tokens as there are
    directions.
    """
    choice = CACHE.check(Choice.from_config(setting["cache"]))
    n = len(lever_input.tokens)
    prefill = 1
    if choice.name == "low_rank":
        prefill = choice.options["rank"]
        if prefill > n:
            raise UserError(f"cache 'low_rank': rank is {prefill}, but the text has {n} tokens")
    reading = read_stepwise(lever_input, choice, prefill)
    shape = lever_input.model.cache_shape
    assert isinstance(shape, CacheShape)
    plain_cache = make_cache(None, shape, 1, n)
    plain_cache.prepare_step([0], torch.arange(n, device=shape.device)[None])
    records = reading.layers
    is_merged = any(record.is_merged for record in records)
    nothing = torch.full((1, n), torch.nan)
    errors = [(nothing, nothing) if is_merged else record.measure_errors() for record in records]
    detail = {
        "prefill": prefill,
        "lossless": reading.cache.lossless,
        "bytes": reading.used_bytes[-1],
        "bytes_terms": describe_bytes(reading.cache),
        "bytes_static": plain_cache.memory_usage().used_bytes,
        "bytes_static_terms": describe_bytes(plain_cache),
        "layers": reading.layer_numbers,
        "merged": is_merged,
        "visible": [[mark_visible(row) for row in record.visible] for record in records],
        "key_error": [_mean_errors(keys) for keys, _ in errors],
        "value_error": [_mean_errors(values) for _, values in errors],
    }
    if any((error > 0).any() for pair in errors for error in pair):
        detail["key_terms"] = [_list_terms(keys) for keys, _ in errors]
        detail["value_terms"] = [_list_terms(values) for _, values in errors]
    return LeverOutput(lever_input.select_rows(reading.logits), detail=detail)


def mark_visible(visible: Tensor) -> str:
    """One character per position of (K, t): "1" all heads may attend to it, "0" none, "+" some."""
    counts, n_heads = visible.sum(0).tolist(), len(visible)
    return "".join("1" if count == n_heads else "+" if count else "0" for count in counts)


def _mean_errors(errors: Tensor) -> list[float | None]:
    """Means over the heads that keep a position, None where no head does: (K, T) -> T numbers."""
    return [None if math.isnan(error) else round_number(error) for error in errors.nanmean(0).tolist()]


def _list_terms(errors: Tensor) -> list[list[float]]:
    """Rounded approximation errors of the first heads, per kept position: (K, T) -> T lists."""
    kept = [[error for error in column if not math.isnan(error)] for column in errors.T.tolist()]
    return [[float(f"{error:.3g}") for error in column[:SHOWN_TERMS]] for column in kept]


def _find_obstacle(lever_input: LeverInput) -> str:
    model = lever_input.model
    if not isinstance(model, CausalLM | Seq2Seq):
        return "this model has no decoder, so it has no cache"
    if not model.cache_shape.kv_layers:
        return "this model keeps a state in place of keys and values"
    return find_stepwise_obstacle(lever_input)


def _list_fields(lever_input: LeverInput) -> list[Field]:
    return [Field("cache", "part", "static", maximum=_MAX_OPTION, values=tuple(CACHE.names()))]


def _list_cases(lever_input: LeverInput) -> list[Setting]:
    """The settings that support this model."""
    shape, n = lever_input.model.cache_shape, len(lever_input.tokens)
    assert isinstance(shape, CacheShape)
    policies, _ = select_policies(shape, n, None)
    choices = [policy.choice for policy in policies if policy.share in _CASES.get(policy.family, ())]
    rank = min(shape.head_dim, shape.v_dim, n) // 2
    if rank:
        choices.append(Choice("low_rank", rank=rank))
    return [{"cache": _to_setting(choice)} for choice in choices if _is_supported(choice, shape, n)]


def _is_supported(choice: Choice, shape: CacheShape, n: int) -> bool:
    try:
        make_cache(choice, shape, 1, n)
    except UserError:
        return False
    return True


def _to_setting(choice: Choice) -> dict[str, Any]:
    return {"name": choice.name, **choice.options}


CACHE_LEVER = Lever(
    "cache", "cache", _find_obstacle, _list_fields, _list_cases, read_through_cache, _SHORT_TOP
)
