"""How often a model says just the token that stood there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.nn.loss import IGNORED


def perplexity_of(nats: float) -> float:
    """exp of a loss; of one that no number can hold, a number as large."""
    return math.exp(min(nats, 700.0))


class Recovered(NamedTuple):
    """Sums over the tokens asked for."""

    nll: float = 0.0  # -log p, natural
    right: int = 0  # how many were the likeliest
    asked: int = 0

    @classmethod
    def of(cls, found: Iterable[Sequence[float]]) -> Recovered:
        """The sums of several, added up."""
        return cls(*map(sum, zip(*found, strict=True)))

    def measures(self) -> dict[str, float]:
        """Loss in nats, perplexity and accuracy, each of a token asked for."""
        loss = self.nll / max(self.asked, 1)
        return {"loss": loss, "ppl": perplexity_of(loss), "accuracy": self.right / max(self.asked, 1)}


@torch.no_grad()
def recovered(
    features: Tensor, head: Callable[[Tensor], Tensor], labels: Tensor, chunk: int = 512
) -> Recovered:
    """Of features (..., C) where labels (...) ask for a token; -100 asks for none. ``chunk`` rows of logits exist at a time."""
    asked = labels != IGNORED
    features, labels = features[asked], labels[asked]
    nll, right = 0.0, 0
    for x, y in zip(features.split(chunk), labels.split(chunk), strict=True):
        scores = head(x).float()
        nll += float(torch.nn.functional.cross_entropy(scores, y, reduction="sum"))
        right += int((scores.argmax(-1) == y).sum())
    return Recovered(nll, right, len(labels))
