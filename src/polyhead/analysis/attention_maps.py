"""What every head looks at: attention weights from any forward pass, named by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polyhead.models.seq2seq import Seq2Seq

KINDS = {"cross": "cross-attention", "encoder": "encoder self-attention", "decoder": "decoder self-attention",
         "self": "self-attention"}  # fmt: skip

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


def pair_attention(model: Seq2Seq, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """One pair, (1, S) and the decoder's input (1, T), -> kind (see KINDS) -> weights (layers, heads, queries, keys).

    A kind that has no weights to show, such as a layer without attention, is left out.
    """
    with torch.inference_mode(), watch(model) as seen:
        model.features(source, target)
    found: dict[str, list[Tensor]] = {"cross": [], "encoder": [], "decoder": []}
    for name, passes in seen.items():
        kind = "cross" if name.endswith(".cross") else name.split(".")[0]
        found[kind] += [weights[0] for weights in passes]
    return {kind: torch.stack(layers) for kind, layers in found.items() if layers}


def self_attention(model: nn.Module, *given: Tensor | None) -> Tensor | None:
    """What a model of one side looks at, tokens (1, T) -> weights (layers, heads, T, T), or None if it has none to show.

    Behind the tokens may come their positions and segments.
    """
    with torch.inference_mode(), watch(model) as seen:
        model(*given)
    layers = [weights[0] for passes in seen.values() for weights in passes]
    return torch.stack(layers) if layers else None
