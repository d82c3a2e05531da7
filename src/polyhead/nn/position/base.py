"""What a position scheme is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from polyhead.config import Shape
from polyhead.nn.certain import certain
from polyhead.nn.kv import KV
from polyhead.registry import POSITION

Project = Callable[[Tensor], tuple[Tensor, Tensor]]
"""What attention makes of vectors as of tokens, queries and keys: (R, C) -> (H, R, D), (K, R, D)."""

Place = Literal["nothing", "embeddings", "heads", "scores"]
# whoever does several things is seen by the last of them, which no kernel does unasked
_PLACES: dict[str, Place] = {
    "embed": "embeddings",
    "rotate": "heads",
    "bias": "scores",
    "scores": "scores",
    "values": "scores",
}


@POSITION.register("none")
class Position(nn.Module):
    """No positions: attention then treats its input as a set.

    An encoder is blind to order; a decoder can still count through its causal mask. It is also the base of all schemes:
    one acts in one place, whose method it overrides, and which ``acts_on`` then names. ``pos`` None stands for whole rows
    0..T-1.

    When: a baseline
    """

    acts_on: Place = "nothing"
    products = 1  # of which attention's score is the sum: more with vectors of the scheme's own

    def __init_subclass__(cls) -> None:
        """A scheme acts where it overrides: the kernels go by ``acts_on``, and would pass over what it does elsewhere."""
        super().__init_subclass__()
        for method, place in _PLACES.items():
            if getattr(cls, method) is not getattr(Position, method):
                cls.acts_on = place

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def embed(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """Added to the embeddings (sinusoidal, learned): (B, T, C), (B, T) -> (B, T, C)."""
        return x

    def rotate(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """Turns queries and keys (rope): (B, H, T, D), (B, T) -> (B, H, T, D)."""
        return x

    def scaled(self, x: Tensor) -> Tensor:
        """As ``rotate`` makes them larger or smaller, but not turned: (B, H, T, D) -> (B, H, T, D)."""
        return x

    def bias(self, q: Tensor, kv: KV, pos: Tensor | None, scale: float | None = None) -> Tensor | None:
        """Added to the scores (alibi, relative): (B, H, T, D) at pos (B, T) over kv -> (1 or B, H, T, S).

        ``scale`` is what attention multiplies its products with, 1/sqrt(D) if not given; a bias that is itself a
        product of the query is multiplied with it too.
        """
        return None

    def scores(
        self, q: Tensor, kv: KV, pos: Tensor | None, scale: float | None, project: Project
    ) -> Tensor | None:
        """The same from attention that can ``project`` vectors of the scheme's own (disentangled); else its bias."""
        return self.bias(q, kv, pos, scale)

    def values(self, weights: Tensor, kv: KV, pos: Tensor | None) -> Tensor | None:
        """Added to the output (relative): weights (B, H, T, S), after dropout, of queries at pos over kv -> (B, H, T, Dv).

        A scheme with such a part sets ``adds_values``, for the weights are made by hand for it.
        """
        return None

    adds_values = False


def beyond(x: Tensor, pos: Tensor | None, length: int) -> bool:
    """Whether tokens (B, T, C) at pos (B, T) reach beyond a table of so many positions; an exported graph has no more."""
    return x.size(1) > length if pos is None else pos.numel() > 0 and certain(pos.max() >= length)
