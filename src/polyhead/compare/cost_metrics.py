"""Costs of a design: parameters, floating-point operations, memory, speed, and the share of dead units.

Shapes: B rows, T tokens, F hidden units of a feed-forward layer, N tokens routed to an expert.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyhead.cache.factory import make_cache
from polyhead.compare.tasks.base import EvalBatch
from polyhead.config.recipe import Recipe
from polyhead.cost.fake_tensors import measure_flops
from polyhead.cost.parameter_count import meta_model
from polyhead.evaluate.perplexity import loss_to_perplexity
from polyhead.models import CausalLM, Model, Seq2Seq
from polyhead.run.run import Run

_DEAD_THRESHOLD = 1e-6  # activations below this count as inactive
_MIN_TOKENS = 8192  # tokens after which a unit that was never active counts as dead


def count_parameters(recipe: Recipe, vocab_size: int, labels: Sequence[str] = ()) -> int:
    """Number of parameters of the model, computed without allocating them."""
    config = recipe.model.with_vocabulary(vocab_size, labels)
    return sum(p.numel() for p in meta_model(config).parameters())


@torch.no_grad()
def flops_per_token(model: nn.Module, batch: EvalBatch) -> float:
    """FLOPs of a forward pass per predicted token, or per text for a classifier.

    Counted by torch during the pass, so every part is covered. Matrix products and convolutions count (a
    multiplication and an addition are two operations), element-wise functions do not.
    """
    head = getattr(model.eval(), batch.head)
    return measure_flops(lambda: head(batch.features(model))) / batch.n_tokens


@torch.no_grad()
def measure_dead_units(model: Model, batches: Iterable[EvalBatch]) -> float | None:
    """Share of hidden feed-forward units that no token activates, over about 8,000 tokens.

    Hooks record the input of each ``down_proj``; None if the model has no such layer.
    """
    layers = {name: m for name, m in model.named_modules() if name.endswith("down_proj")}
    if not layers:
        return None
    peaks: dict[str, Tensor] = {}
    token_masks: dict[str, Tensor | None] = {}

    def add_hook(name: str) -> None:
        def record_peak(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            hidden = inputs[0].mT if isinstance(module, nn.Conv1d) else inputs[0]
            # (B, T, F); the input of an expert is (N, F), without padding
            mask = token_masks[name.split(".")[0]] if hidden.dim() == 3 else None
            hidden = hidden.abs() if mask is None else hidden.abs() * mask[..., None].to(hidden.device)
            peak = hidden.flatten(0, -2).amax(0)
            peaks[name] = torch.maximum(peaks[name], peak) if name in peaks else peak

        handles.append(layers[name].register_forward_pre_hook(record_peak))

    handles: list[torch.utils.hooks.RemovableHandle] = []
    for name in layers:
        add_hook(name)
    try:
        model.eval()
        n_tokens = 0
        for batch in batches:
            token_masks.update(batch.token_masks)
            batch.features(model)
            n_tokens += batch.n_tokens
            if n_tokens >= _MIN_TOKENS:
                break
    finally:
        for handle in handles:
            handle.remove()
    units = sum(len(peak) for peak in peaks.values())
    return sum(int((peak < _DEAD_THRESHOLD).sum()) for peak in peaks.values()) / units if units else None


def average_batch_size(task: Any, n_batches: int = 32) -> float:
    """Mean number of tokens, or texts, that a training batch predicts.

    Averaged over ``n_batches`` batches spread over an epoch, or over all batches if there are fewer.
    """
    plan = task.epoch_batches(0)
    sample = [plan[len(plan) * i // n_batches] for i in range(n_batches)] if len(plan) > n_batches else plan
    return sum(task.count_labels(task.collate(rows)) for rows in sample) / len(sample)


def loss_and_ppl(nll: float, tokens: int) -> dict[str, float]:
    """Loss in nats per token, and its perplexity."""
    loss = nll / tokens
    return {"loss": loss, "ppl": loss_to_perplexity(loss)}


def measure_peak_memory(device: torch.device) -> int:
    """Peak memory of this process in bytes: GPU memory if the device is a GPU, else main memory."""
    import resource

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        # getrusage includes the memory of the parent at the time of the fork
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


@torch.inference_mode()
def measure_cache_bytes(run: Run, memory: Any) -> tuple[float, float] | tuple[None, None]:
    """Bytes that the cache of one sequence grows by per token, and bytes that do not depend on the length.

    Measured on two real caches, one twice as long as the other. ``memory`` is the encoder output that the
    decoder attends to, or None. The result is (None, None) for an encoder, which decodes nothing.
    """
    model = run.model.eval()
    if not isinstance(model, Seq2Seq | CausalLM):
        return None, None
    length, shape = max(1, min(64, run.config.max_len // 2)), model.cache_shape
    kv_bytes, state_bytes = [], 0
    for n in (length, 2 * length):
        cache = make_cache(run.generation.cache, shape, 1, n)
        pos = torch.arange(n, device=run.device)[None]
        cache.prepare_step([0], pos)
        model.decode(torch.zeros_like(pos), pos, cache, memory)  # token ids do not change the size
        kv_bytes.append(sum(cache.layers[i].nbytes for i in shape.kv_layers))
        state_bytes = sum(layer.nbytes for layer in cache.layers) - kv_bytes[-1]
    slope = (kv_bytes[1] - kv_bytes[0]) / length
    # the intercept at length 0: a cache of constant size, or less than one token if spare slots are kept
    fixed = kv_bytes[0] - slope * length
    return slope, state_bytes + (fixed if fixed > slope else 0.0)
