"""What every head looks at: attention weights from any forward pass, named by layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.kv import Watcher

KINDS = {"cross": "cross-attention", "encoder": "encoder self-attention", "decoder": "decoder self-attention",
         "self": "self-attention"}  # fmt: skip

LAYER = re.compile(r"\blayers\.(\d+)\.")

Weights = dict[str, list[Tensor]]
"""Name of an attention, such as ``decoder.layers.0.cross`` -> its weights (B, H, T, S), one entry a pass.

Where layers share their weights, the first has the entries of all, one after the other.
"""


class Layers(NamedTuple):
    """What the layers that attend look at, and which of the model's they are."""

    numbers: list[int]  # from 1
    weights: Tensor  # (layers, heads, queries, keys)

    @classmethod
    def of(cls, seen: Weights) -> Layers | None:
        """From one pass of one row, or none where nobody attends."""
        each = [
            (int(LAYER.findall(name)[-1]) + i, weights[0])
            for name, passes in seen.items()
            for i, weights in enumerate(passes, 1)
        ]
        return cls([number for number, _ in each], torch.stack([w for _, w in each])) if each else None


@contextmanager
def watch(model: nn.Module) -> Iterator[Weights]:
    """Collect the weights of every attention of the model, in training, stepwise decoding and search alike.

    What other threads do with the model meanwhile is not collected.
    """
    seen: Weights = {}
    added: list[tuple[Any, Watcher]] = []
    for name, module in model.named_modules():
        if hasattr(module, "watchers"):
            added.append((module, _collector(seen.setdefault(name, []))))
    for module, see in added:
        module.watchers.append(see)
    try:
        yield seen
    finally:
        for module, see in added:
            module.watchers.remove(see)


def _collector(kept: list[Tensor]) -> Watcher:
    """A watcher that keeps what the thread that made it computes."""
    here = get_ident()

    def see(weights: Tensor) -> None:
        if get_ident() == here:
            kept.append(weights.detach())

    return see


def has_cross_attention(model: nn.Module) -> bool:
    """Whether some layer of a decoder has weights on the source to show."""
    return any(name.endswith(".cross") and hasattr(part, "watchers") for name, part in model.named_modules())


def pair_attention(model: Seq2Seq, source: Tensor, target: Tensor) -> dict[str, Layers]:
    """One pair, (1, S) and the decoder's input (1, T), -> kind (see KINDS) -> its layers.

    A kind that has no weights to show, such as a layer without attention, is left out.
    """
    with torch.inference_mode(), watch(model) as seen:
        model.features(source, target)
    found: dict[str, Weights] = {"cross": {}, "encoder": {}, "decoder": {}}
    for name, passes in seen.items():
        found["cross" if name.endswith(".cross") else name.split(".")[0]][name] = passes
    return {kind: layers for kind, of_kind in found.items() if (layers := Layers.of(of_kind))}


def self_attention(model: nn.Module, *given: Tensor | None) -> Layers | None:
    """What a model of one side looks at, tokens (1, T) -> its layers, or None if it has none to show.

    Behind the tokens may come their positions and segments.
    """
    with torch.inference_mode(), watch(model) as seen:
        model(*given)
    return Layers.of(seen)
