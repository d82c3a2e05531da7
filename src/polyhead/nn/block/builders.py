"""Builders of sub-layers for blocks of every kind."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import AttentionShape, ModelSpec
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import ATTENTION, NORM
from polyhead.nn.position.base import Position
from polyhead.nn.residual import Residual


def build_residual(config: ModelSpec) -> Residual:
    """A residual connection with its own norms, placed as configured."""
    sandwich_norm = NORM.build(config.norm, config.d_model) if config.sandwich_norm else None
    norm = Choice("none") if config.sandwich_norm == "after" else config.norm
    norm_module = NORM.build(norm, config.d_model)
    return Residual(norm_module, config.norm_first, config.dropout, sandwich_norm, config.residual_scale)


def build_cross_attention(config: ModelSpec, shape: AttentionShape) -> Any:
    """Attention of a decoder to the source, without positions: distances to the source mean nothing."""
    source_shape = shape._replace(causal=False)
    return ATTENTION.build(config.cross_attention or config.attention, source_shape, Position(source_shape))


def reject_self_attention(config: ModelSpec, name: str, cross: bool) -> None:
    """Raise a UserError if decoder_attention is set for a block without self-attention."""
    if cross and config.decoder_attention is not None:
        raise UserError(
            f"decoder_attention is self-attention, which a decoder of block {name!r} does not have; for "
            "attention to the source set cross_attention"
        )
