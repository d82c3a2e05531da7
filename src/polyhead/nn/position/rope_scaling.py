"""Frequencies of rope, the angle per token of each pair, and their scaling for longer texts.

A scaling returns the frequencies (width / 2,) and a factor on all queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Scaling = Literal["none", "linear", "ntk", "yarn", "llama3", "longrope"]
BETA_FAST, BETA_SLOW = 32, 1  # turns within original_len of high- and low-frequency pairs


class RopeFrequencies(NamedTuple):
    """The parameters of a scaling."""

    theta: float  # base of the angles
    rotary_dim: int  # rotated features
    factor: float = 1.0  # text length relative to original_len
    original_len: int = 1  # tokens that the model was trained with
    pair_factors: Sequence[float] = ()  # by how much each pair rotates more slowly (longrope)

    def compute_inv_freq(self) -> Tensor:
        """theta^(-2j / width) for width = rotary_dim (Su et al., 2021, sec. 3.2.2)."""
        return self.theta ** (-torch.arange(0, self.rotary_dim, 2).float() / self.rotary_dim)


def keep_frequencies(frequencies: RopeFrequencies) -> tuple[Tensor, float]:
    """No scaling."""
    return frequencies.compute_inv_freq(), 1.0


def scale_linear(frequencies: RopeFrequencies) -> tuple[Tensor, float]:
    """Positions divided by the factor (Chen et al., 2023, eq. 4)."""
    return frequencies.compute_inv_freq() / frequencies.factor, 1.0


def scale_ntk(frequencies: RopeFrequencies) -> tuple[Tensor, float]:
    """A larger base: the lowest frequency is scaled by the factor, the highest not at all (bloc97, 2023)."""
    larger = frequencies.theta * frequencies.factor ** (frequencies.rotary_dim / (frequencies.rotary_dim - 2))
    return frequencies._replace(theta=larger).compute_inv_freq(), 1.0


def scale_yarn(frequencies: RopeFrequencies) -> tuple[Tensor, float]:
    """Low frequencies scaled, high ones not, a ramp between; sharper scores.

    Peng et al., 2023, sec. 3.2 to 3.4.
    """
    theta, width, factor, original_len, _ = frequencies

    def find_pair_index(n_rotations: float) -> float:
        """The pair (real-valued, counted in features) with this number of rotations within original_len."""
        return width * math.log(original_len / (n_rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = (
        max(math.floor(find_pair_index(BETA_FAST)), 0),
        min(math.ceil(find_pair_index(BETA_SLOW)), width - 1),
    )
    top = high if high != low else low + 0.001
    ramp = ((torch.arange(width // 2).float() - low) / (top - low)).clamp(0, 1)
    rates = frequencies.compute_inv_freq()
    return rates * (1 - ramp) + rates / factor * ramp, yarn_attention_factor("yarn", factor, original_len)


def scale_llama3(frequencies: RopeFrequencies) -> tuple[Tensor, float]:
    """Pairs of less than one turn in original_len are scaled, those of four or more not (Llama 3.1, 2024)."""
    rates = frequencies.compute_inv_freq()
    n_turns = frequencies.original_len * rates / (2 * math.pi)
    unscaled = ((n_turns - 1) / 3).clamp(0, 1)
    return rates * unscaled + rates / frequencies.factor * (1 - unscaled), 1.0


def scale_longrope(frequencies: RopeFrequencies) -> tuple[Tensor, float]:
    """Each pair by its own factor, found by a search; sharper scores (Ding et al., 2024, sec. 3; Phi-3)."""
    gain = yarn_attention_factor("longrope", frequencies.factor, frequencies.original_len)
    return frequencies.compute_inv_freq() / torch.tensor(frequencies.pair_factors), gain


def yarn_attention_factor(scaling: str, factor: float, original_len: int) -> float:
    """Factor on queries and keys that keeps attention sharp in longer texts; 1 if texts are not longer."""
    if factor <= 1 or scaling not in ("yarn", "longrope"):
        return 1.0
    log_factor = math.log(factor)
    return 0.1 * log_factor + 1 if scaling == "yarn" else math.sqrt(1 + log_factor / math.log(original_len))


ROPE_SCALINGS: dict[str, Callable[[RopeFrequencies], tuple[Tensor, float]]] = {
    "none": keep_frequencies,
    "linear": scale_linear,
    "ntk": scale_ntk,
    "yarn": scale_yarn,
    "llama3": scale_llama3,
    "longrope": scale_longrope,
}
SCALING_OPTIONS = {
    "original_len": (
        ("yarn", "llama3", "longrope"),
        "scaling 'yarn' requires original_len, as do 'llama3' and 'longrope'",
    ),
    "short": (("longrope",), "scaling 'longrope' requires a number for each pair"),
    "long": (("longrope",), "scaling 'longrope' requires a number for each pair"),
}
"""Options that only some scalings take: those scalings, and the requirement as an error message."""
