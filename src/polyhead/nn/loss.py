"""Losses as sums; cross-entropy in chunks, so that the logits of a whole batch are never stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from polyhead.nn.device import at_least_fp32, move_tensor, product_dtype, true_indices
from polyhead.nn.embedding import Head
from polyhead.nn.override import overridable
from polyhead.nn.shard_plan import VocabularyShard

IGNORE_INDEX = -100  # label of positions without loss
LOGITS_CHUNK = 512  # rows of logits stored at a time


class Loss(NamedTuple):
    """Sums, not means: the mean is taken once, over all micro-batches and ranks."""

    total: Tensor  # what is minimised, summed over the labels that count
    nll: Tensor  # -log p(label), summed likewise; exp(nll / count) is the perplexity
    count: int  # type: ignore[assignment]  # rather than tuple's method of that name


@overridable  # in training on a CPU: one pass over the logits (kernels.training.mode)
def cross_entropy(
    features: Tensor,
    head: Head,
    labels: Tensor,
    smoothing: float = 0.0,
    chunk: int = LOGITS_CHUNK,
    host: Tensor | None = None,
) -> Loss:
    """Label-smoothed cross-entropy of softmax(head(features)) (Szegedy et al., 2016).

    features (..., C), labels (...) with -100 at positions to ignore. Smoothing e gives the label 1 - e + e/V
    and every other token e/V. Only ``chunk`` rows of logits are stored at a time: gradients are computed in
    the forward pass, where the probabilities are available. If the head's vocabulary is sharded over ranks,
    each computes the logits of its own tokens. ``host`` are the labels on the CPU.
    """
    rows = labeled_rows(labels, host)
    features = head.scale_input(features.flatten(0, -2).index_select(0, rows))
    features = features if head.vocabulary is None else head.vocabulary.sum_gradient(features)
    labels = labels.flatten().index_select(0, rows)
    needs_grad = torch.is_grad_enabled()
    total, nll = _ChunkedCrossEntropy.apply(
        features, head.weight, head.bias, labels, head.softcap, smoothing, chunk, needs_grad, head.vocabulary
    )
    return Loss(total, nll, len(labels))


def classification_loss(
    logits: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    host: Tensor | None = None,
    weights: Tensor | None = None,
    gamma: float = 0.0,
) -> Loss:
    """Label-smoothed cross-entropy over classes: logits (B, L), labels (B,) with -100 for rows to ignore.

    ``host`` are the labels on the CPU. What is minimised is multiplied by the weight of the class, of
    ``weights`` (L,), and by (1 - p)^gamma, p the probability of the label (Lin et al., 2017, eq. 4).
    """
    rows = labeled_rows(labels, host)
    log_p = logits.index_select(0, rows).log_softmax(-1, dtype=torch.float32)
    labels = labels.index_select(0, rows)
    row_nll = -log_p.gather(1, labels[:, None])
    nll = row_nll.sum()
    total = (1 - smoothing) * nll - smoothing * log_p.mean(-1).sum() if smoothing else nll
    if weights is not None or gamma:
        rows = (1 - smoothing) * row_nll[:, 0] - smoothing * log_p.mean(-1)
        # the gradient of a power below 1 is infinite at 0
        rows = rows * (-torch.expm1(-row_nll[:, 0])).clamp(min=1e-7) ** gamma if gamma else rows
        total = (rows if weights is None else rows * weights.to(rows.device)[labels]).sum()
    return Loss(total, nll.detach(), len(labels))


def multi_label_loss(
    logits: Tensor, targets: Tensor, smoothing: float = 0.0, host: Tensor | None = None
) -> Loss:
    """Binary cross-entropy, the mean over L labels: logits (B, L), targets (B, L) of 0 and 1, NaN to ignore.

    Smoothing e makes the targets e/2 and 1 - e/2. ``host`` are the targets on the CPU.
    """
    logits, targets = _select_numbers(logits, targets, host)
    smoothed = targets * (1 - smoothing) + smoothing / 2
    nll, total = (
        F.binary_cross_entropy_with_logits(logits, y, reduction="sum") / logits.size(-1)
        for y in (targets, smoothed)
    )
    return Loss(total, nll.detach(), len(targets))


def squared_error(logits: Tensor, targets: Tensor, host: Tensor | None = None) -> Loss:
    """Squared error of numbers (B, 1), NaN in the targets to ignore a row; ``host`` as above."""
    logits, targets = _select_numbers(logits, targets, host)
    total = ((logits - targets) ** 2).sum()
    return Loss(total, total.detach(), len(targets))


def span_loss(logits: Tensor, labels: Tensor, host: Tensor | None = None) -> Loss:
    """Cross-entropy of the first and the last token of spans, their mean (Devlin et al., 2018, sec. 4.2).

    logits (B, T, 2), labels (B, T) with -100 for tokens that are no candidates, 1 for the first token of the
    span, 2 for its last, 3 for both; a row without them is ignored. ``host`` are the labels on the CPU.
    """
    is_ignored = labels == IGNORE_INDEX
    is_ignored &= ~is_ignored.all(1, keepdim=True)  # a softmax needs one candidate
    log_p = logits.float().masked_fill(is_ignored[..., None], -torch.inf).log_softmax(1)
    ends = labels.clamp(min=0)[..., None] & torch.tensor((1, 2), device=labels.device) != 0
    total = -log_p.where(ends, 0.0).sum() / 2
    return Loss(total, total.detach(), int(((labels if host is None else host) > 0).any(1).sum()))


def _select_numbers(logits: Tensor, targets: Tensor, host: Tensor | None) -> tuple[Tensor, Tensor]:
    """The rows with a target, in single precision at least."""
    known = true_indices(~(targets if host is None else host)[:, 0].isnan(), targets.device)
    return at_least_fp32(logits.index_select(0, known)), targets.index_select(0, known)


def labeled_rows(labels: Tensor, host: Tensor | None = None) -> Tensor:
    """The indices of the labels that count, flattened: (...), the same on the CPU -> (n,)."""
    return true_indices((labels if host is None else host) != IGNORE_INDEX, labels.device)


def select_labels(labels: Tensor, host: Tensor) -> tuple[Tensor, Tensor]:
    """The labels that count, flattened, on the device and on the CPU: (...), (...) -> (n,), (n,)."""
    known = host[host != IGNORE_INDEX]
    return move_tensor(known, labels.device), known


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        softcap: float | None,
        smoothing: float,
        chunk: int,
        needs_grad: bool,
        shard: VocabularyShard | None,
    ) -> tuple[Tensor, Tensor]:
        vocab_size = len(weight) if shard is None else shard.vocab_size
        dtype = product_dtype(features)
        wide = torch.promote_types(dtype, torch.float32)  # of the softmax
        w = weight.detach().to(dtype)
        features_need_grad = needs_grad and any(ctx.needs_input_grad)
        d_features = torch.empty_like(features) if features_need_grad else None
        weight_needs_grad = needs_grad and ctx.needs_input_grad[1]  # the head's weights may be frozen
        d_weight = torch.zeros_like(weight, dtype=wide) if weight_needs_grad else None
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=wide)
        total, nll = (torch.zeros((), dtype=wide, device=features.device) for _ in range(2))
        for at in range(0, len(labels), chunk):
            x, y = features[at : at + chunk].to(dtype), labels[at : at + chunk, None]
            scores = at_least_fp32(x @ w.T)
            if bias is not None:
                scores += bias
            if softcap is not None:
                tanh_scores = torch.tanh_(scores / softcap)
                scores = softcap * tanh_scores
            if shard is None:
                log_p = scores.log_softmax(-1)
                chunk_nll = -log_p.gather(1, y).sum()
            else:
                log_p = shard.log_softmax(scores)
                y, is_own = shard.find_labels(y)
                chunk_nll = -(log_p.gather(1, y) * is_own).sum()
            nll += chunk_nll
            total += (
                (1 - smoothing) * chunk_nll - (smoothing / vocab_size) * log_p.sum()
                if smoothing
                else chunk_nll
            )
            if d_features is not None:
                d = log_p.exp_()
                if smoothing:
                    d -= smoothing / vocab_size
                label_share = d.new_full(y.shape, smoothing - 1)
                d.scatter_add_(1, y, label_share if shard is None else label_share * is_own)
                if softcap is not None:
                    d *= 1 - tanh_scores.square_()
                if d_bias is not None:
                    d_bias += d.sum(0)
                d = d.to(dtype)
                d_features[at : at + chunk] = d @ w
                if d_weight is not None:
                    d_weight += d.T @ x
        if shard is not None:  # a label counts where its token is
            total, nll = (x.clone() for x in shard.all_reduce(torch.stack([total, nll]), "sum"))
        ctx.save_for_backward(d_features, d_weight, d_bias)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        d_features, d_weight, d_bias = ctx.saved_tensors
        d_bias = None if d_bias is None else d_bias * grad
        d_weight = None if d_weight is None else d_weight * grad
        return d_features * grad, d_weight, d_bias, *[None] * 6


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
