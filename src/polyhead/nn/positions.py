"""Positions of the tokens of a batch, with what a forward pass computes from their numbers once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, overload

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask


class Visibility(NamedTuple):
    """Which tokens of its own document a token attends to."""

    causal: bool
    window: int | None = None  # as in ``Window``
    sink: int = 0


class Positions(NamedTuple):
    """Positions (B, T), from 0 in each document and -1 at padding, and what is known of them.

    Models take them in place of the tensor. On another device than the CPU ``host`` saves reading them, which
    would wait for all work of that device.
    """

    pos: Tensor
    host: Tensor | None = None  # the same on the CPU, if they are known there
    several_documents: bool | None = None  # whether some row has several; None if it is not known
    block_masks: Mapping[Visibility, BlockMask] = {}  # of packed documents, for compiled layers

    @overload
    @classmethod
    def of(cls, pos: Tensor | Positions, host: Tensor | None = None) -> Positions: ...
    @overload
    @classmethod
    def of(cls, pos: None, host: Tensor | None = None) -> None: ...
    @classmethod
    def of(cls, pos: AnyPositions, host: Tensor | None = None) -> Positions | None:
        """The positions of a tensor, and of its original on the CPU if it was moved."""
        if pos is None or isinstance(pos, Positions):
            return pos
        known = pos if host is None else host
        return cls(pos, known if known.device.type == "cpu" else None)

    @property
    def readable(self) -> Tensor:
        """The numbers, on the CPU if they are known there."""
        return self.pos if self.host is None else self.host


AnyPositions = Tensor | Positions | None
"""What models take: positions, with or without what is known of them; None for full rows."""


def plain_positions(pos: AnyPositions) -> Tensor | None:
    """The tensor of positions."""
    return pos.pos if isinstance(pos, Positions) else pos


def has_several_documents(pos: Tensor, documents: Positions | None = None) -> bool:
    """Whether some row (B, T) has several documents: position 0 starts one. Exported graphs expect one."""
    if torch.compiler.is_exporting():
        return False
    if documents is not None and documents.several_documents is not None:
        return documents.several_documents
    return bool(((pos if documents is None else documents.readable) == 0).sum(1).max() > 1)


def may_have_several_documents(pos: Tensor, documents: Positions | None = None) -> bool:
    """As ``has_several_documents``, but True where it would have to be read from another device."""
    is_known = documents is not None and (
        documents.several_documents is not None or documents.host is not None
    )
    is_unknown = pos.device.type != "cpu" and not is_known and not torch.compiler.is_exporting()
    return is_unknown or has_several_documents(pos, documents)
