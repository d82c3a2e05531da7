"""Each cache policy as a lever: the text read through it, what it evicts, and the error of what it stores."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from polyhead.cache.factory import make_cache
from polyhead.cache.policies import select_policies
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.explain.levers.cache_bytes import describe_bytes
from polyhead.explain.levers.comparison import SHOWN_TERMS, round_number
from polyhead.explain.levers.interface import Field, Lever, LeverOutput, Setting
from polyhead.explain.levers.lever_input import LeverInput
from polyhead.explain.levers.stepwise import find_stepwise_obstacle, read_stepwise
from polyhead.models import CausalLM, Seq2Seq
from polyhead.nn.cache import CacheShape

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
