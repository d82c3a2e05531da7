"""Read a text through a cache, token by token, and record what each step can attend to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.cache.factory import make_cache
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.explain.levers.lever_input import LeverInput
from polyhead.nn.cache import Cache
from polyhead.nn.kv import KV

MAX_STEPS = 256  # tokens that are read one by one


def find_stepwise_obstacle(lever_input: LeverInput) -> str:
    """Reason to skip stepwise decoding (the text is too long), or ""."""
    n = len(lever_input.tokens)
    return "" if n <= MAX_STEPS else f"the text has {n} tokens; at most {MAX_STEPS} are read one by one"


class StepwiseReading(NamedTuple):
    """A text that was read through a cache: the logits of its tokens (T, V) and what the cache did."""

    logits: Tensor
    cache: Cache
    used_bytes: list[int]  # that hold tokens, after each token; within the prefill those at its end
    layers: list[LayerRecord]  # of the layers with keys and values
    layer_numbers: list[int]


class LayerRecord:
    """Keys and values that were written to one layer of a cache, and what it returned at each step.

    T tokens so far, K key/value heads, D head_dim; the row is left out.
    """

    def __init__(self, layer: Any) -> None:
        self._update: Callable[[KV], KV] = layer.update
        self.is_merged = False  # whether a slot represented several tokens
        self.visible: list[Tensor] = []  # per token (K, t + 1) bool: which positions each head may attend to
        self.k: list[Tensor] = []  # (K, t, D) of each step
        self.v: list[Tensor] = []
        self.last: KV | None = None
        layer.update = self.update

    def update(self, kv: KV) -> KV:
        """Call the layer's ``update`` and record its argument and result."""
        self.k.append(kv.k[0].clone())
        self.v.append(kv.v[0].clone())
        result, start = self._update(kv), sum(k.size(1) for k in self.k[:-1])
        pos = result.resolve_positions()[0].expand(kv.k.size(1), -1)  # (K, S)
        self.is_merged |= result.log_count is not None and bool((result.log_count > 0).any())
        for t in range(kv.k.size(2)):
            can_see = pos >= 0
            if result.mask is not None:
                can_see = can_see & result.mask[0, :, min(t, result.mask.size(2) - 1)]
            positions = pos.masked_fill(~can_see | (pos > start + t), start + t + 1)
            row = torch.zeros(len(pos), start + t + 2, dtype=torch.bool, device=pos.device)
            self.visible.append(row.scatter(1, positions, True)[:, :-1].cpu())
        self.last = KV(result.k.clone(), result.v.clone(), pos[None].clone())
        return result

    def measure_errors(self) -> tuple[Tensor, Tensor]:
        """Relative errors of keys and values at the last step: (K, T) each, NaN where a head keeps nothing.

        |k_cache - k| / |k|, k what was written.
        """
        assert self.last is not None and self.last.pos is not None
        pos, visible = self.last.pos[0], self.visible[-1]
        errors = []
        for written, read in ((torch.cat(self.k, 1), self.last.k[0]), (torch.cat(self.v, 1), self.last.v[0])):
            T = written.size(1)
            index = pos.masked_fill((pos < 0) | (pos >= T), T)[..., None].expand_as(read)
            stored = written.new_zeros(len(written), T + 1, written.size(2)).scatter(1, index, read)[:, :T]
            error = (stored - written).norm(dim=-1) / written.norm(dim=-1).clamp(min=1e-30)
            errors.append(error.cpu().masked_fill(~visible, torch.nan))
        return errors[0], errors[1]


@torch.inference_mode()
def read_stepwise(lever_input: LeverInput, choice: Choice | None, prefill: int = 1) -> StepwiseReading:
    """Feed the decoder's input to a cache: ``prefill`` tokens at once, then one token per step."""
    model: Any = lever_input.model
    device, n = next(model.parameters()).device, len(lever_input.tokens)
    cache = make_cache(choice, model.cache_shape, 1, n)
    numbers = model.cache_shape.kv_layers
    records = [LayerRecord(cache.layers[i]) for i in numbers]
    features, used_bytes = [], list[int]()
    for start, stop in [(0, prefill), *((t, t + 1) for t in range(prefill, n))]:
        tokens = torch.tensor([lever_input.tokens[start:stop]], device=device)
        pos = torch.arange(start, stop, device=device)[None]
        cache.prepare_step([0], pos)
        features.append(model.decode_features(tokens, pos, cache, lever_input.memory))
        used_bytes += [cache.memory_usage().used_bytes] * (stop - start)
        if any(record.last is None for record in records):
            raise UserError("attention of this model does not write to its cache")
    logits = model.head(torch.cat(features, 1))[0].float().cpu()  # of all tokens at once, which is faster
    return StepwiseReading(logits, cache, used_bytes, records, numbers)
