"""Losses of text embeddings, which compare vectors by their cosine. Shapes: N pairs, M candidates."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead.nn.device import at_least_fp32


def contrastive_losses(
    anchors: Tensor, candidates: Tensor, is_excluded: Tensor, temperature: float
) -> Tensor:
    """-log e^(cos(a_i, c_i)/t) / Σ_j e^(cos(a_i, c_j)/t): (N, C), (M, C), (N, M) -> (N,).

    InfoNCE (van den Oord et al., 2018, eq. 4): candidate i belongs to anchor i, and all others that are not
    excluded are its negatives (Henderson et al., 2017, sec. 4).
    """
    logits = _normalize(anchors) @ _normalize(candidates).T / temperature
    labels = torch.arange(len(anchors), device=logits.device)
    return F.cross_entropy(logits.masked_fill(is_excluded, -torch.inf), labels, reduction="none")


def score_order_loss(a: Tensor, b: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """log(1 + Σ_{s_i > s_j} e^((cos_j - cos_i)/t)) of pairs with scores: (N, C), (N, C), (N,) -> ().

    CoSENT (Su, 2022): only the order of the scores counts, not their range.
    """
    cosines = (_normalize(a) * _normalize(b)).sum(-1) / temperature
    differences = cosines[None] - cosines[:, None]
    differences = differences.masked_fill(scores[:, None] <= scores[None], -torch.inf)
    return torch.cat([differences.new_zeros(1), differences.flatten()]).logsumexp(0)


def _normalize(x: Tensor) -> Tensor:
    return F.normalize(at_least_fp32(x), dim=-1)
