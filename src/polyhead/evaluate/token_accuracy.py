"""Loss and accuracy per token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.nn.loss import IGNORE_INDEX


def loss_to_perplexity(loss: float) -> float:
    """exp of a loss, at most exp(700), so that it is finite."""
    return math.exp(min(loss, 700.0))


class TokenLoss(NamedTuple):
    """Sums over the predicted tokens."""

    nll: float = 0.0  # -log p, natural
    n_correct: int = 0  # tokens that were the most likely
    n_tokens: int = 0

    @classmethod
    def from_parts(cls, parts: Iterable[Sequence[float]]) -> TokenLoss:
        """The sum of several."""
        return cls(*map(sum, zip(*parts, strict=True)))

    def compute_metrics(self) -> dict[str, float]:
        """Loss in nats, perplexity and accuracy, per predicted token."""
        loss = self.nll / max(self.n_tokens, 1)
        return {
            "loss": loss,
            "ppl": loss_to_perplexity(loss),
            "accuracy": self.n_correct / max(self.n_tokens, 1),
        }


@torch.no_grad()
def token_losses(
    features: Tensor, head: Callable[[Tensor], Tensor], labels: Tensor, chunk: int = 512
) -> TokenLoss:
    """Loss of features (..., C) with labels (...), -100 ignored; at most ``chunk`` rows of logits at once."""
    is_label = labels != IGNORE_INDEX
    features, labels = features[is_label], labels[is_label]
    nll, n_correct = 0.0, 0
    for x, y in zip(features.split(chunk), labels.split(chunk), strict=True):
        scores = head(x).float()
        nll += float(torch.nn.functional.cross_entropy(scores, y, reduction="sum"))
        n_correct += int((scores.argmax(-1) == y).sum())
    return TokenLoss(nll, n_correct, len(labels))
