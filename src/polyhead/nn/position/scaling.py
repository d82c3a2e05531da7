"""How fast the pairs of rope turn: the angle per token of each pair, and what stretches it for longer texts.

A scaling gives the rates (width / 2,) and a factor for all queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Scaling = Literal["none", "linear", "ntk", "yarn", "llama3", "longrope"]
BETA_FAST, BETA_SLOW = 32, 1  # turns within original_len that a pair of high and of low frequency does


class Turns(NamedTuple):
    """What a scaling is made from."""

    theta: float  # base of the angles
    width: int  # features that turn
    factor: float = 1.0  # by which texts are longer
    original_len: int = 1  # tokens that the model was trained with
    slower: Sequence[float] = ()  # by how much each pair turns more slowly, where that was searched for

    def rates(self) -> Tensor:
        """theta^(-2j / width) (Su et al., 2021, sec. 3.2.2)."""
        return self.theta ** (-torch.arange(0, self.width, 2).float() / self.width)


def none(turns: Turns) -> tuple[Tensor, float]:
    """As they are."""
    return turns.rates(), 1.0


def linear(turns: Turns) -> tuple[Tensor, float]:
    """Positions divided by the factor (Chen et al., 2023, eq. 4)."""
    return turns.rates() / turns.factor, 1.0


def ntk(turns: Turns) -> tuple[Tensor, float]:
    """A larger base, so that the slowest pair is stretched by the factor and the fastest not at all (bloc97, 2023)."""
    larger = turns.theta * turns.factor ** (turns.width / (turns.width - 2))
    return turns._replace(theta=larger).rates(), 1.0


def yarn(turns: Turns) -> tuple[Tensor, float]:
    """Slow pairs stretched, fast ones not, a ramp between; sharper scores (Peng et al., 2023, sec. 3.2 to 3.4)."""
    theta, width, factor, original_len, _ = turns

    def pair(often: float) -> float:
        """Which pair (real, counted in features) turns so often within original_len."""
        return width * math.log(original_len / (often * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair(BETA_FAST)), 0), min(math.ceil(pair(BETA_SLOW)), width - 1)
    top = high if high != low else low + 0.001
    stretched = ((torch.arange(width // 2).float() - low) / (top - low)).clamp(0, 1)
    rates = turns.rates()
    return rates * (1 - stretched) + rates / factor * stretched, sharper("yarn", factor, original_len)


def llama3(turns: Turns) -> tuple[Tensor, float]:
    """Pairs that turn less than once within original_len stretched, those of four turns or more not (Llama 3.1, 2024)."""
    rates = turns.rates()
    often = turns.original_len * rates / (2 * math.pi)
    kept = ((often - 1) / 3).clamp(0, 1)
    return rates * kept + rates / turns.factor * (1 - kept), 1.0


def longrope(turns: Turns) -> tuple[Tensor, float]:
    """Each pair by a number that a search found best; sharper scores (Ding et al., 2024, sec. 3; Phi-3)."""
    gain = sharper("longrope", turns.factor, turns.original_len)
    return turns.rates() / torch.tensor(turns.slower), gain


def sharper(scaling: str, factor: float, original_len: int) -> float:
    """The factor of queries and keys with which attention stays as sharp in longer texts; it is 1 where they are not longer."""
    if factor <= 1 or scaling not in ("yarn", "longrope"):
        return 1.0
    more = math.log(factor)
    return 0.1 * more + 1 if scaling == "yarn" else math.sqrt(1 + more / math.log(original_len))


SCALINGS: dict[str, Callable[[Turns], tuple[Tensor, float]]] = {
    "none": none,
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
}
WANTS = {
    "original_len": (
        ("yarn", "llama3", "longrope"),
        "scaling 'yarn' wants the tokens that the model was trained with, 'llama3' and 'longrope' too",
    ),
    "short": (("longrope",), "scaling 'longrope' wants a number for each pair"),
    "long": (("longrope",), "scaling 'longrope' wants a number for each pair"),
}
"""Options that some scalings need and the others do not read: those, and what to say."""
