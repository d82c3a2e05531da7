"""Residuals with a feed-forward layer, plain or gated, in one function.

Kept for the backward pass are the input, the preactivations and the random bytes of dropout; the normed input
and the activations are computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polyhead.kernels.training.blocks import (
    BlockInput,
    FeedForwardCall,
    Forms,
    describe_drop,
    describe_input,
    run_blocks,
    run_fastest,
)
from polyhead.kernels.training.elementwise import (
    Activation,
    Drop,
    address,
    linear_activation,
    linear_residual,
)
from polyhead.kernels.training.products import multiply
from polyhead.kernels.training.residual import (
    FusedSublayer,
    Gradients,
    WeightCopies,
    copy_weights,
    is_fusable,
)
from polyhead.nn.feed_forward.mlp import FeedForward, GatedFeedForward
from polyhead.nn.residual import Residual


def fuse_feed_forward(
    copies: WeightCopies,
    residual: Residual,
    x: Tensor,
    layer: FeedForward | GatedFeedForward,
    pos: Tensor | None = None,
) -> FusedSublayer | None:
    """A feed-forward layer; with a gate, one product computes the gate and the features that it scales."""
    is_gated, down = isinstance(layer, GatedFeedForward), layer.down_proj
    inner_maps = [layer.gate_proj, layer.up_proj] if isinstance(layer, GatedFeedForward) else [layer.up_proj]
    maps = *inner_maps, down
    parts = layer.activation.modules() if isinstance(layer.activation, nn.Module) else ()
    if not all(type(linear) is nn.Linear for linear in maps):
        return None
    if not is_fusable(x, residual, layer, layer.dropout, *maps, *parts):  # no learned activations either
        return None
    activation, rows = Activation.of(layer.activation, is_gated), x.numel() // x.size(-1)
    if activation is None:
        return None
    form = FeedForwardForm(
        activation,
        Drop.draw(layer.dropout, (rows, down.in_features)),
        Drop.draw(residual.dropout, (rows, down.out_features), residual.scale),
        up := copy_weights(copies, *(linear.weight for linear in inner_maps)),
        copy_weights(copies, down.weight),
    )
    return FusedSublayer(form, up.dtype, inner_maps, down)


class FeedForwardForm(NamedTuple):
    """What a layer computes with, besides its input: rows of C numbers, F features."""

    activation: Activation
    inner: Drop  # of the activations
    outer: Drop  # of the output
    up: Tensor  # (F, C), or (2F, C) with a gate, in the dtype of the products
    down: Tensor  # (C, F)

    def forward(
        self, rows: BlockInput, in_bias: Tensor | None, out_bias: Tensor | None, *memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None, FeedForwardForm, Sequence[Tensor | None]]:
        """x + dropout(FFN(rows)), as of a ``residual.Form``."""
        assert rows.x is not None
        kind = f"feed-forward{'-gated' if self.activation.is_gated else ''}-{self.activation.code}"
        inputs = self, rows, in_bias, out_bias
        out, hidden, stats = run_fastest(kind, _FORWARD, (self.up, self.down), len(rows.x), *inputs)
        rest = self._replace(inner=self.inner._replace(bytes_=None), outer=self.outer._replace(bytes_=None))
        return out, stats, rest, (hidden, self.inner.bytes_, self.outer.bytes_)

    def backward(
        self,
        rows: BlockInput,
        grad: Tensor,
        stats: Tensor | None,
        tensors: Sequence[Tensor | None],
        needs_weights: tuple[bool, bool],
    ) -> Gradients:
        """The gradients, as of a ``residual.Form``."""
        hidden, inner_bytes, outer_bytes = tensors
        inner, outer = self.inner._replace(bytes_=inner_bytes), self.outer._replace(bytes_=outer_bytes)
        kind = f"feed-forward-gradient{'-gated' if self.activation.is_gated else ''}-{self.activation.code}"
        inputs = self._replace(inner=inner, outer=outer), rows, grad, hidden, stats, needs_weights
        weights, can_choose = (self.up, self.down), all(needs_weights)
        out: Gradients = run_fastest(kind, _GRADIENT, weights, len(grad), *inputs, needs_weights=can_choose)
        return out


def _forward_by_passes(
    form: FeedForwardForm, rows: BlockInput, up_bias: Tensor | None, down_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The output (R, C), the preactivations (R, F or 2F) and statistics of the norm (R, 2)."""
    assert rows.x is not None
    product_rows, stats = rows.compute_rows(form.up.dtype)
    hidden, active = linear_activation(product_rows, form.up, up_bias, form.activation, form.inner)
    return linear_residual(active, form.down, down_bias, rows.x, form.outer), hidden, stats


def _forward_by_blocks(
    form: FeedForwardForm, rows: BlockInput, up_bias: Tensor | None, down_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    assert rows.x is not None
    R, dtype = len(rows.x), form.up.dtype
    hidden = rows.x.new_empty(R, len(form.up), dtype=dtype)
    stats = rows.x.new_empty(R, 2) if rows.product_rows is None else None
    out = torch.empty_like(rows.x)
    call = _describe(form, rows, stats, hidden, out)
    call.up_bias, call.down_bias = address(up_bias), address(down_bias)
    run_blocks("feed_forward", dtype, call)
    return out, hidden, stats


def _gradient_by_passes(
    form: FeedForwardForm,
    rows: BlockInput,
    grad: Tensor,
    hidden: Tensor,
    stats: Tensor | None,
    needs_weights: tuple[bool, bool],
) -> Gradients:
    dtype = form.up.dtype
    d_out, d_down_bias = form.outer.backward(grad, dtype)
    d_active = multiply("input", d_out, form.down)
    active, d_hidden, d_up_bias = form.activation.backward(d_active, hidden, form.inner)
    d_down = multiply("weight", d_out.T, active).float() if needs_weights[1] else None
    del active, d_out
    dx, *d_norm = rows.gradient(multiply("input", d_hidden, form.up), grad, stats)
    d_up = multiply("weight", d_hidden.T, rows.compute_rows(dtype)[0]).float() if needs_weights[0] else None
    return Gradients(dx, d_norm, d_up, d_up_bias, d_down, d_down_bias)


def _gradient_by_blocks(
    form: FeedForwardForm,
    rows: BlockInput,
    grad: Tensor,
    hidden: Tensor,
    stats: Tensor | None,
    needs_weights: tuple[bool, bool],
) -> Gradients:
    width, C = form.up.shape
    dx, sums = torch.empty_like(grad), grad.new_empty(3 * C + width)
    d_up, d_down = grad.new_empty(form.up.shape), grad.new_empty(form.down.shape)
    call = _describe(form, rows, stats, hidden, dx)
    call.grad, call.d_up, call.d_down, call.d_sums = map(address, (grad, d_up, d_down, sums))
    run_blocks("feed_forward_gradient", form.up.dtype, call)
    d_down_bias, d_up_bias, *d_norm = sums.split([C, width, C, C])
    return Gradients(dx, d_norm, d_up, d_up_bias, d_down, d_down_bias)


def _describe(
    form: FeedForwardForm, rows: BlockInput, stats: Tensor | None, hidden: Tensor, out: Tensor
) -> FeedForwardCall:
    """The call of a kernel, without what only one direction has."""
    activation, (C, F) = form.activation, form.down.shape
    return FeedForwardCall(
        describe_input(rows, C, stats),
        describe_drop(form.inner),
        describe_drop(form.outer),
        up=address(form.up), down=address(form.down), hidden=address(hidden), out=address(out),
        R=len(hidden), F=F,
        activation=activation.code, is_gated=activation.is_gated, slope=activation.slope,
    )  # fmt: skip


_FORWARD: Forms = {"passes": _forward_by_passes, "blocks": _forward_by_blocks}
_GRADIENT: Forms = {"passes": _gradient_by_passes, "blocks": _gradient_by_blocks}
