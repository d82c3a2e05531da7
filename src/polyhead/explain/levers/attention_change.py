"""What a lever does to the weights of attention: those of the attention in which they change most.

Shapes: H query heads, K key/value heads, T queries, S keys or slots of a cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.core.errors import UserError
from polyhead.explain.arrays import ArrayStore
from polyhead.explain.levers.interface import LeverOutput, round_number
from polyhead.explain.levers.lever_input import LeverInput
from polyhead.explain.trace import Facts
from polyhead.introspect.compute_attention import AttentionWeights

MAP_LEVERS = frozenset({"scale", "causal_mask", "positions", "head", "kv_heads", "cache"})
"""Levers whose cases have the weights of an attention."""

MAX_CASE_BYTES, MAX_LEVER_BYTES = 15_000, 60_000  # of weights in a file
_BYTES_PER_WEIGHT = 2.5  # two bytes as text; those that are 0 take none
_LEVELS = 2**15 - 1  # of a stored weight: with its sign in two bytes
_MIN_CHANGE = 1e-6  # mean change of a weight that is more than rounding
_LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.(?!.*\blayers\.))")


class MapStore(NamedTuple):
    """Where weights are stored: under which prefix, in how many bytes, and of which attention.

    Without a path it is the one whose weights change most.
    """

    arrays: ArrayStore
    prefix: str
    max_bytes: float = 2**30
    path: str | None = None


def read_maps(
    weights_by_name: AttentionWeights,
    counts: Mapping[str, int],
    slots: Mapping[int, Sequence[Tensor]] | None = None,
) -> dict[str, Tensor]:
    """The weights of each attention (H, T, S) by its path, one pass or all steps with a cache joined.

    ``counts`` are the layers that each module is; of shared layers the last ones may have been run.
    """
    maps: dict[str, Tensor] = {}
    for name, passes in weights_by_name.items():
        n_run = min(counts[name], len(passes))
        first = int(_LAYER.findall(name)[0]) + counts[name] - n_run
        for i in range(n_run):
            steps = [weights[0] for weights in passes[i::n_run]]
            if slots and first + i in slots and name.endswith(".attn") and not name.startswith("encoder."):
                n_keys = sum(weights.size(1) for weights in steps)
                pairs = zip(steps, slots[first + i], strict=True)
                steps = [place_weights(weights, pos, n_keys) for weights, pos in pairs]
            maps[_LAYER.sub(str(first + i), name)] = torch.cat(steps, 1).cpu()
    return maps


def place_weights(weights: Tensor, pos: Tensor, n_keys: int) -> Tensor:
    """Weights of slots (H, T, S) with positions (K, S), -1 if empty, by position: (H, T, n_keys)."""
    index = pos.masked_fill(pos < 0, n_keys).repeat_interleave(len(weights) // len(pos), 0)
    placed = weights.new_zeros(*weights.shape[:2], n_keys + 1)
    return placed.scatter_add_(2, index[:, None].expand_as(weights), weights)[..., :n_keys]


def describe_attention_change(
    lever_input: LeverInput, weights_by_name: AttentionWeights, output: LeverOutput, store: MapStore
) -> Facts | None:
    """The changed weights of one attention, stored as an array; None if none of them changes.

    Of many heads those are stored whose weights change most.
    """
    plain = lever_input.plain_weights
    counts = {name: len(passes) for name, passes in plain.items()}
    before, after = read_maps(plain, counts), read_maps(weights_by_name, counts, output.slots)
    if store.path is not None and store.path not in before:
        raise UserError(f"there is no attention {store.path!r}; known: {', '.join(before)}")
    changes = {path: _select_shown(lever_input, path, after[path] - before[path]).abs() for path in after}
    means = {path: float(change.mean()) for path, change in changes.items()}
    path = store.path or max(means, key=means.__getitem__, default="")
    if means.get(path, 0.0) < _MIN_CHANGE:
        return None
    weights = _select_shown(lever_input, path, after[path])
    head_bytes = _BYTES_PER_WEIGHT * int(weights.count_nonzero()) / len(weights)
    n_heads = max(1, min(len(weights), int(store.max_bytes / head_bytes)))
    heads = sorted(changes[path].mean((1, 2)).topk(n_heads).indices.tolist())
    name = store.arrays.store(f"{store.prefix}.{path}", weights[heads], levels=_LEVELS)
    return {"path": path, "heads": heads, "change": round_number(means[path]), "weights": name}


def _select_shown(lever_input: LeverInput, path: str, weights: Tensor) -> Tensor:
    """Those of the queries and keys that the page shows."""
    if lever_input.windows is None:
        return weights
    queries = lever_input.windows[lever_input.side if path.startswith("decoder.") else 0]
    keys = lever_input.windows[0] if path.endswith(".cross") else queries
    return weights[:, slice(*queries), slice(*keys)]
