"""What a stack, and all who look into one, ask of its layers and of their attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from polyhead.nn.cache import StateShape
from polyhead.nn.kv import EncoderMemory, GatherKV, WeightsHook, Window
from polyhead.nn.position.base import Position
from polyhead.nn.positions import Visibility


@runtime_checkable
class ProjectsKV(Protocol):
    """A layer or an attention that can read an encoder's output."""

    def project_kv(self, x: Tensor, pos: Tensor | None) -> EncoderMemory:
        """The encoder's output (B, S, C) as it is read at every step."""


class Mixer(ProjectsKV, Protocol):
    """What layers and their attentions have in common: both mix the tokens of a row.

    They are called with x (B, T, C), positions (B, T), the cache of a layer, the source as ``project_kv``
    returned it, the position scheme prepared for this forward pass and, if ``reads_documents``, the
    ``Positions``; all but x may be None.
    """

    reads_documents: bool

    @property
    def state(self) -> StateShape | None:
        """The state shapes of a decoding row; None if the cache holds keys and values."""

    def __call__(self, *inputs: Any) -> Tensor:
        """(B, T, C), ... -> (B, T, C)."""


class AttentionPart(Mixer, Protocol):
    """An attention, to its own input or to the source."""

    position: Position | None
    window: Window | None

    def visibility_in_blocks(self) -> Visibility | None:
        """Which keys a query sees, if it can be computed in blocks; None if it needs all weights."""


class Layer(Mixer, Protocol):
    """A layer of a stack, with self-attention and attention to the source, or None."""

    attn: AttentionPart | None
    cross: AttentionPart | None


@runtime_checkable
class ShowsWeights(Protocol):
    """An attention that calls hooks with its weights."""

    weights_hooks: list[WeightsHook]


@runtime_checkable
class GathersKV(Protocol):
    """An attention that can read the keys and values of tokens of other ranks."""

    gather_kv: GatherKV | None


def no_blocks() -> None:
    """``visibility_in_blocks`` of an attention that needs all weights."""


LAYER_DEFAULTS = {"attn": None, "cross": None, "reads_documents": False}
ATTENTION_DEFAULTS = {
    "position": None,
    "window": None,
    "reads_documents": False,
    "visibility_in_blocks": no_blocks,
}


def complete_layer(layer: nn.Module) -> nn.Module:
    """Give a layer and its attentions, which may come from another package, what they may leave out."""
    _set_defaults(layer, LAYER_DEFAULTS)
    for attention in (layer.attn, layer.cross):
        if attention is not None:
            _set_defaults(attention, ATTENTION_DEFAULTS)
    return layer


def _set_defaults(part: object, defaults: Mapping[str, Any]) -> None:
    for name, value in defaults.items():
        if not hasattr(part, name):
            setattr(part, name, value)
