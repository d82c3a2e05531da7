"""Packed and padded rows, for layers that mix neighbouring tokens: B rows, T slots, C features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polyhead.nn.device import host_copy, move_tensor, true_indices
from polyhead.nn.export_guard import is_traced


def apply_unpadded(layer: Callable[[Tensor], Tensor], x: Tensor, pos: Tensor | None) -> Tensor:
    """Apply ``layer``, (B, T, C) -> (B, T, X), to each row as if there were no padding: (B, T, X).

    The tokens of a row are moved to its start, with 0 after them; the output at padding is 0. The batch keeps
    its shape, so that the content of one row cannot change the rounding of another.
    """
    if pos is None:
        return layer(x)
    empty = (pos < 0).expand(x.shape[:2])
    real = ~empty
    packed_slot = torch.where(empty, real.sum(1, keepdim=True) + empty.cumsum(1), real.cumsum(1)) - 1
    slots = torch.arange(x.size(1), device=x.device).expand_as(packed_slot)
    order = torch.empty_like(packed_slot).scatter(
        1, packed_slot, slots
    )  # counting is a fifth of the time of sorting
    packed = layer(_gather_slots(x.masked_fill(empty[..., None], 0), order))
    return _gather_slots(packed, packed_slot).masked_fill(empty[..., None], 0)


def has_several_documents(pos: Tensor) -> bool:
    """Whether some row (B, T) has several documents: position 0 starts one.

    Exported graphs expect one. Compiled layers use the note of ``note_documents``: one graph for each case.
    """
    if torch.compiler.is_exporting():
        return False
    if is_traced() and hasattr(pos, "several_documents"):
        return bool(pos.several_documents)
    return bool((host_copy(pos) == 0).sum(1).max() > 1)


def may_have_several_documents(pos: Tensor) -> bool:
    """As ``has_several_documents``, but True where it would have to be read from another device."""
    is_unknown = host_copy(pos).device.type != "cpu" and not torch.compiler.is_exporting()
    return is_unknown or has_several_documents(pos)


def note_documents(pos: Tensor | None) -> None:
    """Note whether rows have several documents, for the compiled layers that are called with ``pos``."""
    if pos is not None:
        pos.several_documents = has_several_documents(pos)  # type: ignore[attr-defined]


def apply_per_document(layer: Callable[[Tensor, Tensor], Tensor], x: Tensor, pos: Tensor) -> Tensor:
    """Apply ``layer``, (B, T, C), (B, T) -> (B, T, X), to packed rows with each document in its own row.

    For recurrent layers and convolutions, where no mask can separate documents. The output at padding is 0.
    """
    host = host_copy(pos).expand(x.shape[:2])
    valid, begins = host >= 0, host == 0
    number = begins.cumsum(1) + torch.arange(len(x), device=host.device)[:, None] * (x.size(1) + 1)
    _, row = number[valid].unique(return_inverse=True)
    count = valid.cumsum(1) - 1
    slot = (count - (count * begins).cummax(1).values)[valid]
    size = (int(row.max()) + 1, int(slot.max()) + 1)
    targets: tuple[Tensor, ...] = (row, slot)
    apart_pos = host.new_full(size, -1).index_put(targets, host[valid])
    sources: tuple[Tensor, ...] = valid.nonzero(as_tuple=True)
    if host.device != x.device:
        targets, sources = (tuple(move_tensor(i, x.device) for i in pair) for pair in (targets, sources))
        apart_pos = move_tensor(apart_pos, x.device)
    out = layer(x.new_zeros(*size, x.size(2)).index_put(targets, x[sources]), apart_pos)
    return out.new_zeros(*x.shape[:2], out.size(2)).index_put(sources, out[targets])


def token_rows(pos: Tensor) -> Tensor:
    """The indices of the tokens that are not padding, flattened: (B, T) -> (n,)."""
    return true_indices(host_copy(pos) >= 0, pos.device)


def first_and_last(x: Tensor, pos: Tensor | None) -> Tensor:
    """The first and last token of each row, concatenated: (B, T, C), (B, T) -> (B, 2 C); 0 for empty rows."""
    if pos is None:
        return torch.cat([x[:, 0], x[:, -1]], -1)
    valid = (pos >= 0).expand(x.shape[:2])
    rows = torch.arange(len(x), device=x.device)
    last = x.size(1) - 1 - valid.flip(1).int().argmax(1)
    pair = torch.cat([x[rows, valid.int().argmax(1)], x[rows, last]], -1)
    return pair.masked_fill(~valid.any(1, keepdim=True), 0)


def _gather_slots(x: Tensor, order: Tensor) -> Tensor:
    """Slot t becomes the old slot ``order[b, t]``. On flattened rows, in a quarter of gather()'s time."""
    first = torch.arange(x.size(0), device=x.device)[:, None] * x.size(1)
    return x.flatten(0, 1).index_select(0, (order + first).flatten()).view(*order.shape, -1)
