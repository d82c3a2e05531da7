"""A residual with its sub-layer in one function, where that computes what the modules would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules import module as torch_module

from polyhead.kernels.build_extension import SKIPPED_KERNELS, load_kernels
from polyhead.kernels.training.blocks import BlockInput
from polyhead.kernels.training.elementwise import Norm
from polyhead.nn.device import product_dtype
from polyhead.nn.dropout import Dropout
from polyhead.nn.norm import LayerNorm, RMSNorm
from polyhead.nn.residual import Residual

_GLOBAL_HOOKS = (
    torch_module._global_forward_hooks,
    torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks,
    torch_module._global_backward_pre_hooks,
)
_WEIGHTED_TYPES = (nn.Linear, LayerNorm, RMSNorm)  # with weights: of any other it is not known what it does

WeightCopies = dict[object, tuple[tuple[Tensor, ...], Tensor]]
"""Weights as the products of a batch read them, made once.

They serve the forward pass, the recomputation and the backward pass of one batch. They do not outlive it,
because sharded training replaces the contents of a weight without a new version. The weights are kept with
their copy, so that ids are unique.
"""


class Gradients(NamedTuple):
    """The gradients of the input, the norm, the maps, and of k and v if there are any."""

    x: Tensor
    norm: Sequence[Tensor | None]  # weight and bias
    in_weight: Tensor | None  # those of the first maps, below one another
    in_bias: Tensor | None  # theirs likewise
    out_weight: Tensor | None
    out_bias: Tensor
    memory: Sequence[Tensor | None] = (None, None)


class Form(Protocol):
    """A sub-layer as the kernels compute it."""

    def forward(
        self, rows: BlockInput, in_bias: Tensor | None, out_bias: Tensor | None, *memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Form, Sequence[Tensor | None]]:
        """x + dropout(F(rows)) (R, C) fp32, statistics of the norm, and what ``backward`` needs.

        That is the form without its tensors, and tensors.
        """
        ...

    def backward(
        self,
        rows: BlockInput,
        grad: Tensor,
        stats: Tensor | None,
        tensors: Sequence[Tensor | None],
        needs_weights: tuple[bool, bool],
    ) -> Gradients:
        """The gradients from that of the sum, (R, C) fp32; of the first and the last weights if needed."""
        ...


class FusedSublayer(NamedTuple):
    """A sub-layer in its fused form."""

    form: Form
    dtype: torch.dtype  # of the products
    in_maps: Sequence[nn.Linear]  # which read the input
    out_map: nn.Linear
    memory: tuple[Tensor | None, Tensor | None] = (None, None)  # k and v, if they come from elsewhere


MakeForm = Callable[..., FusedSublayer | None]
"""The fused form of a sub-layer: (copies, residual, x, sublayer, pos, *inputs), or None if it has none."""


def fuse_residual(
    makers: Mapping[type[nn.Module], MakeForm],
    copies: WeightCopies,
    residual: Residual,
    x: Tensor,
    sublayer: Any,
    *inputs: Any,
) -> Tensor | None:
    """x + dropout(F(N(x))) or N(x + dropout(F(x))): (B, T, C) -> (B, T, C); None without a fused form."""
    make, norm = makers.get(type(sublayer)), Norm.of(residual.norm)
    if make is None or norm is None or type(residual) is not Residual or residual.sandwich_norm is not None:
        return None
    if residual.skip != 1:
        return None
    fused = make(copies, residual, x, sublayer, *inputs)
    if fused is None:
        return None
    biases = [linear.bias.detach() for linear in fused.in_maps if linear.bias is not None]
    out: Tensor = _FusedResidual.apply(
        fused.form,
        norm,
        residual.norm_first,
        fused.dtype,
        torch.cat(biases) if len(biases) > 1 else biases[0] if biases else None,
        *fused.memory,
        x,
        residual.norm._parameters.get("weight"),
        residual.norm._parameters.get("bias"),
        *(weight for linear in (*fused.in_maps, fused.out_map) for weight in (linear.weight, linear.bias)),
    )
    return out


def is_plain_tensor(x: Tensor) -> bool:
    """Whether kernels can read a tensor: of no other class, unless they compute nothing."""
    return type(x) in (Tensor, nn.Parameter) or load_kernels() is SKIPPED_KERNELS


def is_fusable(x: Tensor, residual: Residual, *modules: nn.Module) -> bool:
    """Whether x and the modules are on the CPU in fp32, with products in fp32 or bf16, and without hooks."""
    is_plain = x.dtype == torch.float32 and x.device.type == "cpu" and is_plain_tensor(x)
    if not is_plain or product_dtype(x) not in (torch.float32, torch.bfloat16) or any(_GLOBAL_HOOKS):
        return False
    for module in (residual, residual.norm, residual.dropout, *modules):
        parameters = module._parameters
        if (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or (parameters and type(module) not in _WEIGHTED_TYPES)
        ):
            return False
        if isinstance(module, Dropout) and (
            type(module) is not Dropout or (module.training and module.p > 0 and not module.draws_bytes)
        ):
            return False
        for weight in parameters.values():
            if weight is not None and not (
                is_plain_tensor(weight)
                and weight.dtype == torch.float32
                and weight.device.type == "cpu"
                and weight.is_contiguous()
            ):
                return False
    return True


def copy_weights(copies: WeightCopies, *weights: Tensor) -> Tensor:
    """Weights (N, K) below one another in the dtype of the products: (sum of N, K), without gradient."""
    dtype = product_dtype(weights[0])
    key = (dtype, *map(id, weights))
    if key not in copies:
        rows = [weight.detach() for weight in weights]
        out = rows[0].to(dtype) if len(rows) == 1 else torch.cat(rows, out=torch.empty(0, dtype=dtype))
        copies[key] = weights, out
    return copies[key][1]


class _FusedResidual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        form: Form,
        norm: Norm,
        norm_first: bool,
        dtype: torch.dtype,
        in_bias: Tensor | None,
        k: Tensor | None,
        v: Tensor | None,
        x: Tensor,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        *weights: Tensor | None,
    ) -> Tensor:
        x_rows = x.reshape(-1, x.size(-1)).contiguous()
        product_rows = None if norm_first and norm.is_centred is not None else x_rows.to(dtype)
        rows = BlockInput(norm, x_rows, product_rows, norm_weight, norm_bias)
        out, stats, ctx.form, tensors = form.forward(rows, in_bias, weights[-1], k, v)
        total = None
        if not norm_first:
            total = out
            out, stats = norm.forward(total, norm_weight, norm_bias, torch.float32)
        kept_rows = x_rows if product_rows is None else None
        ctx.save_for_backward(kept_rows, *rows[2:], total, stats, *tensors)
        ctx.norm, ctx.widths = norm, [weight.size(0) for weight in weights[:-2:2] if weight is not None]
        ctx.has_bias = weights[1] is not None, weights[-1] is not None
        return out.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, product_rows, weight, bias, total, stats, *tensors = ctx.saved_tensors
        rows, needs_weight = BlockInput(ctx.norm, x, product_rows, weight, bias), ctx.needs_input_grad[10::2]
        d_total = grad.reshape(-1, grad.size(-1)).float().contiguous()
        d_last_norm: Sequence[Tensor | None] = ()
        if total is not None:
            d_total, *d_last_norm = rows.norm.backward(d_total, total, stats, weight, None)
        needs_weights = any(needs_weight[:-1]), needs_weight[-1]
        found = ctx.form.backward(rows, d_total, stats, tensors, needs_weights)
        d_norm, nothing = d_last_norm or found.norm, [None] * len(ctx.widths)
        d_in = nothing if found.in_weight is None else found.in_weight.split(ctx.widths)
        in_bias = found.in_bias if ctx.has_bias[0] else None
        d_in_biases = nothing if in_bias is None else in_bias.split(ctx.widths)
        return (
            *[None] * 5,
            *found.memory,
            found.x.view(grad.shape),
            None if weight is None else d_norm[0],
            None if bias is None else d_norm[1],
            *(part for pair in zip(d_in, d_in_biases, strict=True) for part in pair),
            found.out_weight,
            found.out_bias if ctx.has_bias[1] else None,
        )
