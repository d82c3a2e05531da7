"""Levers on decoding: sampling, the model's own output for the true one, single steps, and cache policies.

The bytes of a cache are a sum of products: what it stores, of how many tokens, layers and heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from math import prod
from typing import Any

import torch
from torch import Tensor

from polyhead.cache.contiguous import DynamicCache, StaticCache
from polyhead.cache.factory import CompositeCache, make_cache
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
from polyhead.cost.decoding import token_flops
from polyhead.cost.flops import count_forward
from polyhead.cost.workload import BatchShape, UnknownFormulaError
from polyhead.explain.levers.interface import (
    SHOWN_TERMS,
    Field,
    Lever,
    LeverOutput,
    Setting,
    round_number,
    round_numbers,
)
from polyhead.explain.levers.lever_input import MAX_STEPS, LeverInput, read_stepwise
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.greedy import greedy_decode
from polyhead.models import CausalLM, Seq2Seq
from polyhead.nn.cache import Cache, CacheShape

_MAX_TEMPERATURE = 100.0
_NO_TEXT, _NO_CACHE = "this model generates no text", "this model has no decoder, so it has no cache"


def _find_obstacle(lever_input: LeverInput, without_decoder: str) -> str:
    """Why a text is not decoded step by step: the model has no decoder, or the text is too long."""
    n = len(lever_input.tokens)
    if not isinstance(lever_input.model, CausalLM | Seq2Seq):
        return without_decoder
    return "" if n <= MAX_STEPS else f"the text has {n} tokens; at most {MAX_STEPS} are read one by one"


def apply_sampling(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    """The distribution that a token is sampled from; at temperature 0 all of it is on the most likely one."""
    logits, sampling = lever_input.plain_logits, Sampling(**setting)
    if sampling.temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return LeverOutput(torch.full_like(logits, -torch.inf).scatter(-1, best, 0.0))
    return LeverOutput(sampling.apply(logits, [[]] * len(logits)))


SAMPLING_LEVER = Lever(
    "sampling",
    lambda lever_input: "" if isinstance(lever_input.model, CausalLM | Seq2Seq) else _NO_TEXT,
    lambda lever_input: [
        Field("temperature", "number", 1.0, 0, _MAX_TEMPERATURE),
        Field("top_k", "integer", 0, 0, lever_input.model.config.vocab_size),
        Field("top_p", "number", 1.0, 1e-6, 1),
    ],
    lambda _: [{"temperature": 0.5}, {"temperature": 1.5}, {"top_k": 5}, {"top_p": 0.9}],
    apply_sampling,
)


def run_freely(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    """Greedy decoding after the first tokens: each row follows the output, not the true text.

    ``prompt`` tokens are read as they are. Rows after the end of the output are not compared.
    """
    n, total = setting["prompt"], len(lever_input.tokens)
    model: Any = lever_input.model
    prompt, eos_id, n_new = lever_input.tokens[:n], lever_input.eos_id, total - n + 1
    output = greedy_decode(model, prompt, max_new_tokens=n_new, eos_id=eos_id, memory=lever_input.memory)
    output += [eos_id] if len(output) < n_new else []
    tokens = [*prompt, *output[:-1]]  # what is read to predict the output
    whole = lever_input.replace(rows=[*range(total)])
    free_logits = whole.replace(tokens=tokens, rows=[*range(len(tokens))]).compute_logits(model)
    forced_logits = whole.compute_logits(model)
    logits = torch.cat([free_logits, forced_logits[len(tokens) :]])
    first = n - 1  # the row of the first token of the output
    end = [] if lever_input.source is None else [eos_id]  # the text of a language model has no end
    best, targets = forced_logits[first:].argmax(-1).tolist(), [*whole.tokens[n:], *end]
    differences = [
        first + i for i, pair in enumerate(zip(output, targets, strict=False)) if len(set(pair)) > 1
    ]
    detail = {
        "prompt": n,
        "forced": describe_choices(forced_logits[first:], best) | {"target": targets},
        "free": describe_choices(free_logits[first:], output),
        "first_difference": differences[0] if differences else None,
    }
    is_comparable = [i is not None and i < len(tokens) for i in lever_input.rows]
    return LeverOutput(lever_input.select_rows(logits), is_comparable=is_comparable, detail=detail)


def describe_choices(logits: Tensor, tokens: list[int]) -> dict[str, Any]:
    """One token in each row of (R, V), with its probability and the log of the sum of exp(logit)."""
    own = logits.double().gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    log_sum = logits.double().logsumexp(-1)
    return {
        "ids": tokens,
        "p": round_numbers((own - log_sum).exp().tolist()),
        "logsumexp": round_numbers(log_sum.tolist()),
    }


FREE_RUNNING_LEVER = Lever(
    "free_running",
    lambda lever_input: (
        _find_obstacle(lever_input, _NO_TEXT)
        or ("" if len(lever_input.tokens) > 1 else "the text has one token")
    ),
    # the tokens that are read as they are: half of a language model's text, else the opening
    lambda lever_input: [
        Field(
            "prompt",
            "integer",
            max(1, len(lever_input.tokens) // 2) if lever_input.source is None else 1,
            1,
            len(lever_input.tokens),
        )
    ],
    lambda _: [{}],
    run_freely,
)


def compare_prefill(lever_input: LeverInput, setting: Setting) -> LeverOutput:
    """The text in single steps through the cache, and the operations of steps with and without a cache."""
    reading = read_stepwise(lever_input, None)
    detail: dict[str, Any] = {}
    with suppress(UnknownFormulaError):
        detail = count_operations(lever_input)
    return LeverOutput(lever_input.select_rows(reading.logits), detail=detail)


def count_operations(lever_input: LeverInput) -> dict[str, Any]:
    """Operations of the prefill, of each step with a cache, and of each step that reads the row again.

    The source of an encoder-decoder is encoded once, also without a cache: ``source_flops``. The keys and
    values of its output are computed once with a cache, ``source_kv_flops``, and else in each step.
    """
    config, n = lever_input.model.config, len(lever_input.tokens)
    source = len(lever_input.source or ())
    works = count_forward(config, BatchShape(1, n, source))
    prefill = sum(work.total for work in works)
    encoder = sum(work.total for work in works if work.name.startswith("encoder "))
    steps = [token_flops(config, t + 1, source) for t in range(n)]
    again = [
        sum(
            work.total
            for work in count_forward(config, BatchShape(1, t + 1, source, 1))
            if not work.name.startswith("encoder ")
        )
        for t in range(n)
    ]
    # the first step with a cache differs from the one without by what the cache keeps of the source
    source_kv = again[0] - steps[0] if source else 0
    sum_step, sum_again = encoder + source_kv + sum(steps), encoder + sum(again)
    return {
        "prefill_flops": prefill,
        "source_flops": encoder,
        "source_kv_flops": source_kv,
        "step_flops": steps,
        "recompute_flops": again,
        "sum_step": sum_step,
        "sum_recompute": sum_again,
        "saved": round_number(1 - sum_step / sum_again),
    }


PREFILL_LEVER = Lever(
    "prefill",
    lambda lever_input: _find_obstacle(lever_input, _NO_CACHE),
    lambda _: [],
    lambda _: [{}],
    compare_prefill,
)


Factors = Mapping[str, float]
Terms = dict[str, Factors]
"""What is stored -> the factors of its bytes by name."""

_POSITION_BYTES, _FLOAT_BYTES = 8, 4  # of positions, int64; of scores and counts, fp32


def describe_bytes(cache: Cache) -> list[list[Any]]:
    """The terms, [what, factors], of ``memory_usage().used_bytes``; none of a cache of another package."""
    leaves: list[Any] = cache.leaves if isinstance(cache, CompositeCache) else [cache]
    described = (
        next((describe(leaf) for kind, describe in _CACHES.items() if isinstance(leaf, kind)), {})
        for leaf in leaves
    )
    terms = [term for part in described for term in part.items() if prod(term[1].values())]
    total = sum(prod(factors.values()) for _, factors in terms)
    return [[*term] for term in terms] if total == cache.memory_usage().used_bytes else []


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
            sizes = zip(("heads", "head_dim", "rank"), bases[0][i].shape, strict=True)
            terms[role] = {"layers": len(bases), **dict(sizes), "bytes": bases[0][i].element_size()}
    return terms


_CACHES: dict[type, Callable[[Any], Terms]] = {
    StaticCache: _describe_slots,
    DynamicCache: _describe_slots,
    WindowCache: _describe_slots,
    PagedCache: lambda cache: {
        "numbers": _count_numbers(
            {"tokens": cache.block_stats().n_tokens, "layers": len(cache.layers)},
            cache.layers[0].k,
            cache.layers[0].v,
        )
    },
    QuantizedCache: _describe_quantized,
    H2OCache: _describe_h2o,
    SubGenCache: _describe_subgen,
    LowRankCache: _describe_low_rank,
    StateCache: lambda cache: {
        "state": {
            "state_numbers": sum(x[0].numel() for layer in cache.layers for x in layer.tensors),
            "bytes": next(x for layer in cache.layers for x in layer.tensors).element_size(),
        }
    },
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
_SHORT_TOP = SHOWN_TERMS  # tokens listed of each row, since there are many cases


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
        "bytes": reading.cache.memory_usage().used_bytes,
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
    pairs = zip(reading.layer_numbers, records, strict=True)
    slots = None if is_merged else {i: record.positions for i, record in pairs}
    return LeverOutput(lever_input.select_rows(reading.logits), detail=detail, slots=slots)


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
    return [[round_number(error) for error in column[:SHOWN_TERMS]] for column in kept]


def _list_cache_cases(lever_input: LeverInput) -> list[Setting]:
    """The settings that support this model."""
    shape, n = lever_input.model.cache_shape, len(lever_input.tokens)
    assert isinstance(shape, CacheShape)
    policies, _ = select_policies(shape, n, None)
    choices = [policy.choice for policy in policies if policy.share in _CASES.get(policy.family, ())]
    rank = min(shape.head_dim, shape.v_dim, n) // 2
    if rank:
        choices.append(Choice("low_rank", rank=rank))

    def is_supported(choice: Choice) -> bool:
        try:
            make_cache(choice, shape, 1, n)
        except UserError:
            return False
        return True

    return [{"cache": {"name": choice.name, **choice.options}} for choice in choices if is_supported(choice)]


CACHE_LEVER = Lever(
    "cache",
    lambda lever_input: (
        "this model keeps a state in place of keys and values"
        if isinstance(lever_input.model, CausalLM | Seq2Seq) and not lever_input.model.cache_shape.kv_layers
        else _find_obstacle(lever_input, _NO_CACHE)
    ),
    lambda _: [Field("cache", "part", "static", maximum=_MAX_OPTION, values=tuple(CACHE.names()))],
    _list_cache_cases,
    read_through_cache,
    _SHORT_TOP,
)
