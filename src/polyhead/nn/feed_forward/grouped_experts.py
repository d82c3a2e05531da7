"""All experts of a mixture at once, for tokens in the order of their experts.

Shapes: M token copies, in the order of their experts; E experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.nn.feed_forward.mlp import FeedForward, GatedFeedForward
from polyhead.nn.precision import product_dtype

_ALIGNMENT = 8  # features: grouped products read rows of 16 bytes


def can_group(experts: Sequence[nn.Module], x: Tensor) -> bool:
    """Whether a grouped product applies: bf16 input, experts are (gated) MLPs, activation without weights.

    torch has grouped products only in bf16.
    """
    first = experts[0]
    return (
        product_dtype(x) == torch.bfloat16
        and isinstance(first, FeedForward | GatedFeedForward)
        and all(isinstance(part, nn.Linear) for part in list_maps(experts))  # and without adapters
        and not (isinstance(first.activation, nn.Module) and any(True for _ in first.activation.parameters()))
    )


def list_maps(experts: Sequence[nn.Module]) -> list[nn.Module]:
    """The linear maps of feed-forward experts, with or without adapters."""
    return [part for expert in experts for name, part in expert.named_children() if name.endswith("_proj")]


def apply_grouped(experts: Sequence[nn.Module], x: Tensor, loads: Tensor) -> Tensor:
    """Apply expert e to the next ``loads[e]`` rows: (M, C), (E,) -> (M, C).

    The loads are not read from the device, and the graph is the same for any of them.
    """
    first = experts[0]
    assert isinstance(first, FeedForward | GatedFeedForward)
    ends = loads.cumsum(0).to(torch.int32)
    expert_ids = torch.searchsorted(ends, torch.arange(len(x), device=x.device), right=True)

    def project(name: str, x: Tensor) -> Tensor:
        return _grouped_linear([getattr(expert, name) for expert in experts], x, ends, expert_ids)

    inner = first.activation(project("gate_proj" if isinstance(first, GatedFeedForward) else "up_proj", x))
    if isinstance(first, GatedFeedForward):
        inner = inner * project("up_proj", x)
    return project("down_proj", first.dropout(inner))


def apply_all(experts: Sequence[nn.Module], x: Tensor, expert_ids: Tensor) -> Tensor:
    """Apply each expert to all rows and keep those of its own: for experts of any other kind.

    (M, C), (M,) -> (M, C), at E times the cost.
    """
    out = torch.zeros_like(x)
    for i, expert in enumerate(experts):
        out = torch.where((expert_ids == i)[:, None], expert(x), out)
    return out


def _grouped_linear(maps: Sequence[nn.Linear], x: Tensor, ends: Tensor, expert_ids: Tensor) -> Tensor:
    """Each row times the matrix of its expert, plus the bias: (M, in) -> (M, out)."""
    dtype = product_dtype(x)
    weight = torch.stack([one.weight for one in maps]).to(dtype)
    d_out, d_in = weight.shape[1:]
    pads = (0, -d_in % _ALIGNMENT), (0, -d_out % _ALIGNMENT)
    weight = F.pad(weight, (*pads[0], *pads[1])) if pads[0][1] or pads[1][1] else weight
    rows = F.pad(x.to(dtype), pads[0]) if pads[0][1] else x.to(dtype)
    out = F.grouped_mm(rows, weight.mT, offs=ends)[:, :d_out]
    biases: list[Tensor] = [one.bias for one in maps if one.bias is not None]
    return out + torch.stack(biases).to(dtype).index_select(0, expert_ids) if biases else out
