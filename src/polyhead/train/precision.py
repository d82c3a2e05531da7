"""Precision of training: autocast, and loss scaling for fp16."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from polyhead.kernels.cpu_features import is_amd
from polyhead.kernels.training.mode import training_kernels
from polyhead.kernels.training.products import fastest_product
from polyhead.nn.feed_forward.moe import MixtureOfExperts
from polyhead.nn.stack import Stack

ResolvedPrecision = Literal["fp32", "bf16", "fp16"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
CompileChoice = Literal["auto", "none", "layers"]
HALF_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_precision(precision: Precision, device: torch.device) -> ResolvedPrecision:
    """Resolve ``auto`` to the fastest precision of the device.

    bf16 where the hardware multiplies it faster than fp32 (AMX, AVX512-BF16 of AMD, recent GPUs), fp16 on
    GPUs that are fast only in fp16 (Volta, Turing), else fp32.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16"
        return "fp16" if torch.cuda.get_device_capability(device) >= (7, 0) else "fp32"
    # without AMX, Intel processors multiply bf16 at half the speed of fp32; a run measures it
    is_fast = torch.cpu._is_amx_tile_supported() or (torch.cpu._is_avx512_bf16_supported() and is_amd())
    return "bf16" if is_fast else "fp32"


def is_measured(precision: Precision, device: torch.device) -> bool:
    """Whether ``auto`` is decided by a measurement: on a processor that multiplies bf16."""
    has_bf16 = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return precision == "auto" and device.type == "cpu" and has_bf16


def choose_precision(
    precision: Precision, device: torch.device, model: nn.Module, n_tokens: int
) -> ResolvedPrecision:
    """``resolve_precision``; of ``auto`` on a CPU with products in bf16, the faster precision of this model.

    Timed is a product with each size of its matrices, with both gradients, for a batch of ``n_tokens``; once
    per processor: the choice is kept as those of products are.
    """
    if not is_measured(precision, device):
        return resolve_precision(precision, device)
    shapes = sorted({(len(p), p.size(1)) for p in model.parameters() if p.dim() == 2})
    sizes = n_tokens, *(sum(column) for column in zip(*shapes, strict=True))
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    candidates = {name: partial(_multiply, dtype, n_tokens, shapes) for name, dtype in dtypes.items()}
    return "bf16" if fastest_product("precision", candidates, sizes) is candidates["bf16"] else "fp32"


def _multiply(dtype: torch.dtype, n_tokens: int, shapes: Sequence[tuple[int, int]]) -> None:
    """Products of rows with matrices (N, K) of these shapes, and of their gradients, rounded from fp32."""
    for n, k in shapes:
        x, w, dy = (torch.ones(size).to(dtype) for size in ((n_tokens, k), (n, k), (n_tokens, n)))
        _ = x @ w.T, dy @ w, dy.T @ x


@contextmanager
def autocast(precision: ResolvedPrecision, device: torch.device) -> Iterator[None]:
    """Run matmuls inside the context in ``precision``, on a CPU in fused kernels; weights stay fp32."""
    half = torch.autocast(device.type, HALF_DTYPES[precision]) if precision in HALF_DTYPES else nullcontext()
    with half, training_kernels() if device.type == "cpu" else nullcontext():
        yield


def use_tf32(precision: Precision, device: torch.device) -> None:
    """With ``auto``, let a GPU round the inputs of fp32 products to TF32; the weights stay fp32."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision == "auto"


def compile_model(model: nn.Module, choice: CompileChoice, device: torch.device) -> bool:
    """Compile the layers of each stack, by choice; ``auto`` does so on a GPU with Triton."""
    if choice == "none" or (choice == "auto" and not (device.type == "cuda" and _has_triton())):
        return False
    for part in model.modules():
        if isinstance(part, Stack):
            part.compile_layers()
    return True


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


class LossScale:
    """Dynamic loss scale for fp16, so that small gradients are not rounded to 0.

    It is halved when gradients overflow (that update is skipped), and doubled after ``GROWTH_INTERVAL``
    updates without an overflow. As a power of 2 it does not change the bits of a gradient in fp32.

    Paper: Micikevicius et al., 2018, sec. 3.2
    """

    INIT_SCALE, GROWTH_INTERVAL = 2.0**16, 2000

    def __init__(self) -> None:
        self.value, self.n_good_steps = self.INIT_SCALE, 0  # updates since the last change

    @torch.no_grad()
    def unscale(self, model: nn.Module) -> None:
        """Divide the gradients by the scale."""
        # the gradient of the load-balancing bias comes from expert load, not from the loss
        balance_ids = {id(part.balance) for part in model.modules() if isinstance(part, MixtureOfExperts)}
        grads = [p.grad for p in model.parameters() if p.grad is not None and id(p) not in balance_ids]
        if grads:
            torch._foreach_mul_(grads, 1 / self.value)

    def update(self, finite: bool) -> bool:
        """Update the scale, from whether the gradients were finite; returns whether it was lowered."""
        if finite:
            self.n_good_steps += 1
            if self.n_good_steps == self.GROWTH_INTERVAL:
                self.value, self.n_good_steps = 2 * self.value, 0
            return False
        new_value = max(1.0, self.value / 2)
        is_lower = new_value < self.value
        self.value, self.n_good_steps = new_value, 0
        return is_lower

    def to_json(self) -> dict[str, Any]:
        """The scale as JSON, for the checkpoint."""
        return {"value": self.value, "good": self.n_good_steps}

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of ``to_json``."""
        self.value, self.n_good_steps = state["value"], state["good"]
