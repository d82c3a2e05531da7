"""What every head looks at: attention weights from any forward pass, named by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polyhead.models.seq2seq import Seq2Seq

Weights = dict[str, list[Tensor]]
"""Name of an attention, such as ``decoder.layers.0.cross`` -> its weights (B, H, T, S), one entry a pass."""


@contextmanager
def watch(model: nn.Module) -> Iterator[Weights]:
    """Collect the weights of every attention of the model, in training, stepwise decoding and search alike."""
    seen: Weights = {}
    watched = [(name, module) for name, module in model.named_modules() if hasattr(module, "watchers")]
    for name, module in watched:
        kept = seen.setdefault(name, [])
        module.watchers.append(lambda weights, kept=kept: kept.append(weights.detach()))
    try:
        yield seen
    finally:
        for _, module in watched:
            module.watchers.pop()


def cross_attention(model: Seq2Seq, source: Tensor, target: Tensor) -> Tensor:
    """One pair, (1, S) and the decoder's input (1, T), -> weights (layers, heads, T, S)."""
    with torch.inference_mode(), watch(model) as seen:
        model.features(source, target)
    return torch.stack([weights[0][0] for name, weights in seen.items() if name.endswith(".cross")])
