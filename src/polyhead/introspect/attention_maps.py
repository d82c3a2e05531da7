"""Record the attention weights of any forward pass, by layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.kv import WeightsHook

ATTENTION_KINDS = {
    "cross": "cross-attention",
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "self": "self-attention",
}

_LAYER = re.compile(r"\blayers\.(\d+)\.")

AttentionWeights = dict[str, list[Tensor]]
"""Name of an attention, such as ``decoder.layers.0.cross`` -> its weights (B, H, T, S), one entry per pass.

Where layers share their weights, the first has the entries of all, one after the other.
"""


class LayerAttention(NamedTuple):
    """The attention weights of the layers that have attention, and their numbers in the model."""

    layer_numbers: list[int]  # from 1
    weights: Tensor  # (layers, heads, queries, keys)

    @classmethod
    def from_pass(cls, weights_by_name: AttentionWeights) -> LayerAttention | None:
        """From one pass of one row; None if there is no attention."""
        entries = [
            (int(_LAYER.findall(name)[-1]) + i, weights[0])
            for name, passes in weights_by_name.items()
            for i, weights in enumerate(passes, 1)
        ]
        return (
            cls([number for number, _ in entries], torch.stack([w for _, w in entries])) if entries else None
        )


@contextmanager
def record_attention(model: nn.Module) -> Iterator[AttentionWeights]:
    """Record the weights of every attention of the model, in training, stepwise decoding and search alike.

    Passes of other threads are not recorded.
    """
    weights_by_name: AttentionWeights = {}
    hooks: list[tuple[Any, WeightsHook]] = []
    for name, module in model.named_modules():
        if hasattr(module, "weights_hooks"):
            hooks.append((module, _make_hook(weights_by_name.setdefault(name, []))))
    for module, hook in hooks:
        module.weights_hooks.append(hook)
    try:
        yield weights_by_name
    finally:
        for module, hook in hooks:
            module.weights_hooks.remove(hook)


def _make_hook(buffer: list[Tensor]) -> WeightsHook:
    """A hook that records the weights of the current thread."""
    thread_id = get_ident()

    def hook(weights: Tensor) -> None:
        if get_ident() == thread_id:
            buffer.append(weights.detach())

    return hook


def has_cross_attention(model: nn.Module) -> bool:
    """Whether a decoder layer has cross-attention weights to show."""
    return any(
        name.endswith(".cross") and hasattr(part, "weights_hooks") for name, part in model.named_modules()
    )


def compute_pair_attention(model: Seq2Seq, source: Tensor, target: Tensor) -> dict[str, LayerAttention]:
    """One pair, (1, S) and the decoder's input (1, T), -> kind (see ``ATTENTION_KINDS``) -> its layers.

    A kind without weights to show, such as that of layers without attention, is left out.
    """
    with torch.inference_mode(), record_attention(model) as weights_by_name:
        model.features(source, target)
    groups: dict[str, AttentionWeights] = {"cross": {}, "encoder": {}, "decoder": {}}
    for name, passes in weights_by_name.items():
        groups["cross" if name.endswith(".cross") else name.split(".")[0]][name] = passes
    return {kind: layers for kind, group in groups.items() if (layers := LayerAttention.from_pass(group))}


def compute_self_attention(model: nn.Module, *inputs: Tensor | None) -> LayerAttention | None:
    """Attention of an encoder or a decoder alone, tokens (1, T) -> its layers, None without attention.

    Positions and segments may follow the tokens.
    """
    with torch.inference_mode(), record_attention(model) as weights_by_name:
        model(*inputs)
    return LayerAttention.from_pass(weights_by_name)
