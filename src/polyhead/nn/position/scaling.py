"""How fast the pairs of rope turn: the angle per token of each pair, and what stretches it for longer texts.

A scaling takes the base, the number of features that turn, the factor by which texts are longer and the length
that the model was trained with; it gives the rates (width / 2,) and a factor for all queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Scaling = Literal["none", "linear", "ntk", "yarn", "llama3"]
BETA_FAST, BETA_SLOW = 32, 1  # turns within original_len that a pair of high and of low frequency does


def none(theta: float, width: int, factor: float, original_len: int) -> tuple[Tensor, float]:
    """theta^(-2j / width) (Su et al., 2021, sec. 3.2.2)."""
    return theta ** (-torch.arange(0, width, 2).float() / width), 1.0


def linear(theta: float, width: int, factor: float, original_len: int) -> tuple[Tensor, float]:
    """Positions divided by the factor (Chen et al., 2023, eq. 4)."""
    rates, gain = none(theta, width, factor, original_len)
    return rates / factor, gain


def ntk(theta: float, width: int, factor: float, original_len: int) -> tuple[Tensor, float]:
    """A larger base, so that the slowest pair is stretched by the factor and the fastest not at all (bloc97, 2023)."""
    return none(theta * factor ** (width / (width - 2)), width, factor, original_len)


def yarn(theta: float, width: int, factor: float, original_len: int) -> tuple[Tensor, float]:
    """Slow pairs stretched, fast ones not, a ramp between; sharper scores (Peng et al., 2023, sec. 3.2 to 3.4)."""
    rates, _ = none(theta, width, factor, original_len)

    def pair(turns: float) -> float:
        """Which pair (real, counted in features) turns so often within original_len."""
        return width * math.log(original_len / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair(BETA_FAST)), 0), min(math.ceil(pair(BETA_SLOW)), width - 1)
    top = high if high != low else low + 0.001
    stretched = ((torch.arange(width // 2).float() - low) / (top - low)).clamp(0, 1)
    return rates * (1 - stretched) + rates / factor * stretched, 0.1 * math.log(factor) + 1


def llama3(theta: float, width: int, factor: float, original_len: int) -> tuple[Tensor, float]:
    """Pairs that turn less than once within original_len stretched, those of four turns or more not (Llama 3.1, 2024)."""
    rates, gain = none(theta, width, factor, original_len)
    turns = original_len * rates / (2 * math.pi)
    kept = ((turns - 1) / 3).clamp(0, 1)
    return rates * kept + rates / factor * (1 - kept), gain


SCALINGS: dict[str, Callable[[float, int, float, int], tuple[Tensor, float]]] = {
    "none": none,
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
    "llama3": llama3,
}
