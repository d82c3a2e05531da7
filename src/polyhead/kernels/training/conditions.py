"""Conditions under which a fused form computes what the modules would."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.training.elementwise import Norm
from polyhead.nn.dropout import Dropout
from polyhead.nn.norm import LayerNorm, RMSNorm
from polyhead.nn.precision import product_dtype
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
