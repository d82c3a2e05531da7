"""Conditions under which a fused form computes what the modules would, and copies of weights for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.training.elementwise import Norm
from polyhead.nn.device import product_dtype
from polyhead.nn.dropout import Dropout
from polyhead.nn.norm import LayerNorm, RMSNorm
from polyhead.nn.residual import Residual

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_WEIGHTED_TYPES = (nn.Linear, LayerNorm, RMSNorm)  # with weights: of any other it is not known what it does


def is_fusable(x: Tensor, *modules: nn.Module) -> bool:
    """Whether x and the modules are on the CPU in fp32, with products in fp32 or bf16, and without hooks."""
    if (
        load_kernels() is None
        or x.dtype != torch.float32
        or x.device.type != "cpu"
        or type(x) not in (Tensor, nn.Parameter)
    ):
        return False
    if product_dtype(x) not in (torch.float32, torch.bfloat16) or _has_global_hooks():
        return False
    return all(map(_is_plain, modules))


def find_norm(residual: Residual) -> Norm | None:
    """The norm of a residual that a fused form computes; None if it has another one, or two."""
    is_supported = type(residual) is Residual and residual.sandwich_norm is None
    return Norm.of(residual.norm) if is_supported else None


def norm_weights(residual: Residual) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias of the norm of a residual."""
    parameters = residual.norm._parameters
    return parameters.get("weight"), parameters.get("bias")


def list_modules(residual: Residual) -> tuple[nn.Module, ...]:
    """The modules of a residual, itself included."""
    return residual, residual.norm, residual.dropout


def _is_plain(module: nn.Module) -> bool:
    if any(module.__dict__[name] for name in _HOOKS):
        return False
    if module._parameters and type(module) not in _WEIGHTED_TYPES:
        return False
    if isinstance(module, Dropout):
        return type(module) is Dropout and (not module.training or module.p == 0 or module.draws_bytes)
    for weight in module._parameters.values():
        if weight is not None and not (
            type(weight) is nn.Parameter
            and weight.dtype == torch.float32
            and weight.device.type == "cpu"
            and weight.is_contiguous()
        ):
            return False
    return True


def _has_global_hooks() -> bool:
    return any(getattr(torch_module, f"_global{name}") for name in _HOOKS)


class WeightCopies:
    """Weights as the products of a batch read them, made once.

    They serve the forward pass, the recomputation and the backward pass of one batch. They do not outlive it,
    because sharded training replaces the contents of a weight without a new version.
    """

    def __init__(self) -> None:
        self._copies: dict[object, tuple[tuple[Tensor, ...], Tensor]] = {}  # weights are kept: ids are unique

    def get(self, *weights: Tensor) -> Tensor:
        """Weights (N, K) below one another in the dtype of the products: (sum of N, K), without gradient."""
        dtype = product_dtype(weights[0])
        key = (dtype, tuple(map(id, weights)))
        if key not in self._copies:
            self._copies[key] = weights, _cat_rows(weights, dtype)
        return self._copies[key][1]


def _cat_rows(weights: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    rows = [weight.detach() for weight in weights]
    if len(rows) == 1:
        return rows[0].to(dtype)
    out = torch.empty(sum(map(len, rows)), *rows[0].shape[1:], dtype=dtype)
    for part, row in zip(out.split([len(row) for row in rows]), rows, strict=True):
        part.copy_(row)
    return out


def join_biases(maps: Sequence[nn.Linear]) -> Tensor | None:
    """The biases of maps that are one product, in fp32, without gradient."""
    biases = [linear.bias.detach() for linear in maps if linear.bias is not None]
    return torch.cat(biases) if len(biases) > 1 else biases[0] if biases else None
