"""Which number format the matrix products of training use, and what the least of them needs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import nn

from polyhead.fast.processor import is_amd
from polyhead.fast.wide import wide_products
from polyhead.nn.feed_forward.mixture import Experts

Format = Literal["fp32", "bf16", "fp16"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve(precision: Precision, device: torch.device) -> Format:
    """``auto`` is bf16 where the hardware multiplies it faster than fp32 (AMX, AVX512-BF16 of AMD, recent GPUs), fp16 on
    GPUs that multiply only that (Volta, Turing), else fp32.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16"
        return "fp16" if torch.cuda.get_device_capability(device) >= (7, 0) else "fp32"
    # without AMX, Intel's processors multiply bf16 at half the rate of fp32
    fast = torch.cpu._is_amx_tile_supported() or (torch.cpu._is_avx512_bf16_supported() and is_amd())
    return "bf16" if fast else "fp32"


def autocast(precision: Format, device: torch.device) -> AbstractContextManager[object]:
    """Weights stay fp32; the products inside the context run in the given format."""
    if precision in HALVES:
        return torch.autocast(device.type, HALVES[precision])
    return wide_products() if device.type == "cpu" else nullcontext()


class LossScale:
    """What a loss is multiplied by before it is differentiated, so that gradients in fp16 are not rounded to 0.

    It is halved when gradients overflow, whose update is left out, and doubled after ``AFTER`` updates without that; as
    a power of 2 it changes no bit of a gradient in fp32.

    Paper: Micikevicius et al., 2018, sec. 3.2
    """

    FIRST, AFTER = 2.0**16, 2000

    def __init__(self) -> None:
        self.value, self.good = self.FIRST, 0  # and how many updates it was good for

    @torch.no_grad()
    def divide(self, model: nn.Module) -> None:
        """Gradients of a scaled loss -> those of the loss."""
        # how busy experts are is learned from their load, which no loss is in
        own = {id(part.balance) for part in model.modules() if isinstance(part, Experts)}
        scaled = [p.grad for p in model.parameters() if p.grad is not None and id(p) not in own]
        if scaled:
            torch._foreach_mul_(scaled, 1 / self.value)

    def learn(self, finite: bool) -> bool:
        """From whether the gradients were; comes back whether it has given way."""
        if finite:
            self.good += 1
            if self.good == self.AFTER:
                self.value, self.good = 2 * self.value, 0
            return False
        lower = max(1.0, self.value / 2)
        gives_way = lower < self.value
        self.value, self.good = lower, 0
        return gives_way

    def to_json(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"value": self.value, "good": self.good}

    def load(self, saved: dict[str, Any]) -> None:
        """The inverse of ``to_json``."""
        self.value, self.good = saved["value"], saved["good"]
