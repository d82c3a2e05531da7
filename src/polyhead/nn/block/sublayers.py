"""The sub-layers that blocks of every kind are made of."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelSection, Shape
from polyhead.errors import UserError
from polyhead.nn.position.base import Position
from polyhead.nn.residual import Residual
from polyhead.registry import ATTENTION, NORM, Choice


def residual(config: ModelSection) -> Residual:
    """A residual connection with norms of its own, placed as the config says."""
    after = NORM.build(config.norm, config.d_model) if config.sandwich_norm else None
    norm = Choice("none") if config.sandwich_norm == "after" else config.norm
    made = NORM.build(norm, config.d_model)
    return Residual(made, config.norm_first, config.dropout, after, config.scale_residual)


def cross_attention(config: ModelSection, shape: Shape) -> Any:
    """Attention of a decoder to the source, whose positions say nothing about distance to the target."""
    there = shape._replace(causal=False)
    return ATTENTION.build(config.cross_attention or config.attention, there, Position(there))


def refuse_self_attention(config: ModelSection, name: str, cross: bool) -> None:
    """A decoder whose blocks have no self-attention cannot be given one."""
    if cross and config.decoder_attention is not None:
        raise UserError(
            f"decoder_attention is self-attention, and a decoder of block {name!r} has none; "
            "cross_attention is how it looks at the source"
        )
