"""Losses of preferences between answers, from log-ratios to a reference model.

Shapes: N answers, T tokens of a row. A log-ratio is log π(y|x) - log π_ref(y|x), summed over the answer y.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polyhead.nn.device import at_least_fp32
from polyhead.nn.loss import LOGITS_CHUNK, labeled_rows

KL_BLOCK = 8  # answers with one estimate of the divergence


def sequence_log_probs(
    features: Tensor, head: Callable[[Tensor], Tensor], labels: Tensor, host: Tensor
) -> Tensor:
    """Sum of log p of the labels of each row: features (B, T, C), labels (B, T) with -100 to ignore -> (B,).

    ``host`` are the labels on the CPU. Logits are computed in chunks, again in the backward pass.
    """
    rows = labeled_rows(labels, host)
    x, y = features.flatten(0, 1).index_select(0, rows), labels.flatten().index_select(0, rows)
    parts = [
        checkpoint(_label_log_probs, head, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(x.split(LOGITS_CHUNK), y.split(LOGITS_CHUNK), strict=True)
    ]
    log_p = torch.cat(parts)
    return log_p.new_zeros(len(labels)).index_add(0, rows // labels.size(1), log_p)


def _label_log_probs(head: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    return at_least_fp32(head(x)).log_softmax(-1).gather(1, y[:, None])[:, 0]


def dpo_losses(chosen_ratios: Tensor, rejected_ratios: Tensor, beta: float, smoothing: float = 0.0) -> Tensor:
    """-log σ(β (chosen - rejected log-ratio)) (Rafailov et al., 2023, eq. 7): (N,), (N,) -> (N,).

    Smoothing e is the probability that a preference is wrong (cDPO; Mitchell, 2023).
    """
    margin = beta * (chosen_ratios - rejected_ratios)
    return -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)


def kto_losses(
    ratios: Tensor, is_chosen: Tensor, kl: Tensor, beta: float, weights: tuple[float, float]
) -> Tensor:
    """λ (1 - σ(±β (ratio - z0))) (Ethayarajh et al., 2024, eq. 8): (N,), (N,), (N,) -> (N,).

    ``kl`` are the z0; ``weights`` are the λ of desirable and of undesirable answers.
    """
    sign = torch.where(is_chosen, 1.0, -1.0)
    weight = torch.where(is_chosen, *weights)
    return weight * (1 - torch.sigmoid(sign * beta * (ratios - kl)))


def block_divergences(ratios: Tensor) -> Tensor:
    """z0 of each answer: the mean log-ratio of ``KL_BLOCK`` mismatched answers, at least 0: (N,) -> (N,)."""
    blocks = [block.mean().clamp(min=0).expand_as(block) for block in ratios.split(KL_BLOCK)]
    return torch.cat(blocks) if len(ratios) else ratios
