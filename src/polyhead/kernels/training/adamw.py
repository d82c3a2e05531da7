"""AdamW on a CPU in two passes over many tensors: the norm of the gradients, and the update."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from polyhead.kernels.build_extension import INT64, POINTER, SKIPPED_KERNELS, load_kernels
from polyhead.kernels.training.elementwise import FLOAT
from polyhead.kernels.training.residual import is_plain_tensor


class _Tensor(ctypes.Structure):
    """AdamWTensor of train_adamw.hpp."""

    _fields_ = [
        *((name, POINTER) for name in ["weight", "gradient", "mean", "square"]),
        ("n", INT64),
        *((name, ctypes.c_double) for name in ["mean_scale", "root_scale"]),
    ]


_Groups = Sequence[ctypes.Array[_Tensor]]


class AdamW(torch.optim.AdamW):
    """torch's fused AdamW, with kernels for weights in fp32 on a CPU.

    To clip the gradients torch reads them, and reads and writes them; here the step that follows multiplies
    them by the factor of ``clip``. The first step, which makes the state, is torch's.
    """

    found_inf: Tensor | None = None  # as torch's fused optimizers read it: 1.0 to leave the step out
    # of the next step: its tensors, and the factor of the gradients
    _next_step: tuple[_Groups | None, float] | None = None

    def clip(self, max_norm: float) -> Tensor:
        """Limit the norm of the gradients, which the next step reads; returns what it was."""
        groups = self._describe_groups()
        self._next_step = groups, 1.0
        if groups is None:
            return nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"]], max_norm)
        norm = math.sqrt(sum(_find_kernel("gradient_squares")(rows, len(rows)) for rows in groups))
        self._next_step = groups, min(1.0, max_norm / (norm + 1e-6))  # as torch does
        return torch.tensor(norm)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step, of the gradients as ``clip`` limits them."""
        groups, factor = self._next_step or (self._describe_groups(), 1.0)
        self._next_step = None
        if groups is None or closure is not None:
            return super().step(closure)
        if self.found_inf is not None and self.found_inf:
            return None
        for group, rows in zip(self.param_groups, groups, strict=True):
            if not len(rows):
                continue
            decay = 1 - group["lr"] * group["weight_decay"]
            numbers = factor, group["lr"], *group["betas"], group["eps"], decay
            _find_kernel("adamw")(rows, len(rows), *numbers)
            torch._foreach_add_([self.state[p]["step"] for p in group["params"] if p.grad is not None], 1)
        return None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and what ``clip`` found in them."""
        self._next_step = None
        super().zero_grad(set_to_none)

    def _describe_groups(self) -> _Groups | None:
        """The tensors of the next step as kernels take them; None if they cannot."""
        groups: list[ctypes.Array[_Tensor]] = []
        if load_kernels() in (None, SKIPPED_KERNELS):
            return None
        for group in self.param_groups:
            rows = []
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state.get(p, {})
                tensors = p, p.grad, state.get("exp_avg"), state.get("exp_avg_sq")
                if not all(map(_is_plain, tensors)):
                    return None
                step = state["step"].item() + 1
                mean_scale, square_scale = (1 / (1 - beta**step) for beta in group["betas"])
                pointers = map(Tensor.data_ptr, tensors)
                rows.append(_Tensor(*pointers, p.numel(), mean_scale, math.sqrt(square_scale)))
            groups.append((_Tensor * len(rows))(*rows))
        return groups


def _is_plain(x: Any) -> bool:
    return is_plain_tensor(x) and x.dtype == torch.float32 and x.is_cpu and x.is_contiguous()


@cache
def _find_kernel(name: str) -> Any:
    kernel = getattr(load_kernels(), name)
    kernel.restype = ctypes.c_double if name == "gradient_squares" else None
    kernel.argtypes = [POINTER, INT64, *[FLOAT] * (6 if name == "adamw" else 0)]
    return kernel
