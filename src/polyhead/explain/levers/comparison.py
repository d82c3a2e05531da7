"""Compare the output of a changed model with that of the plain one, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

TOP_K = 10  # tokens that are listed of each row
SHOWN_TERMS = 2  # of a sum: of a KL divergence those of the most likely tokens


def compute_kl(logits: Tensor, baseline: Tensor) -> Tensor:
    """KL(p || q) in nats of each row, p = softmax(baseline) and q = softmax(logits): (R, V) -> (R,) fp64.

    Equation: Σ_v p_v (ln p_v - ln q_v). It is infinite if q excludes a token (logit -inf), as top-k and top-p
    do.
    """
    return _sum_kl(baseline.double().log_softmax(-1), logits.double().log_softmax(-1))


def _sum_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    terms = log_p.exp() * (log_p - log_q)
    return terms.where(log_p.exp() > 0, 0.0).sum(-1)


def rank_references(logits: Tensor, references: Sequence[int]) -> list[int]:
    """The rank of a token in each row, 1 for the most likely; of equal logits all have the best rank."""
    own = logits.gather(-1, torch.tensor(references)[:, None])
    ranks: list[int] = ((logits > own).sum(-1) + 1).tolist()
    return ranks


def describe_output(logits: Tensor, references: Sequence[int], top_k: int = TOP_K) -> dict[str, Any]:
    """The most likely tokens of each row of (R, V), and rank and probability of its reference.

    ``logsumexp`` is the logarithm of the sum of exp(logit), which with a probability gives its logit.
    """
    return _describe_log_probs(logits, logits.double().log_softmax(-1), references, top_k)[0]


def _describe_log_probs(
    logits: Tensor, log_p: Tensor, references: Sequence[int], top_k: int
) -> tuple[dict[str, Any], Tensor]:
    """The description, and the ids of the most likely tokens (R, k)."""
    top, ids = log_p.topk(min(top_k, log_p.size(-1)))
    own = log_p.gather(-1, torch.tensor(references)[:, None])[:, 0]
    log_sum = logits.gather(-1, ids[:, :1])[:, 0] - top[:, 0]
    description = {
        "top": {"ids": ids.tolist(), "p": [round_numbers(row) for row in top.exp().tolist()]},
        "rank": rank_references(logits, references),
        "p": round_numbers(own.exp().tolist()),
        "logsumexp": round_numbers(log_sum.tolist()),
    }
    return description, ids


def compare_outputs(
    logits: Tensor,
    baseline: Tensor,
    references: Sequence[int],
    is_comparable: Sequence[bool] | None = None,
    top_k: int = TOP_K,
) -> dict[str, Any]:
    """``describe_output`` of the changed logits (R, V), with the KL divergence of the baseline (R, V)
    from them; None if it is infinite.

    ``top.before`` has the probabilities of the first ``SHOWN_TERMS`` listed tokens in the baseline. Rows
    that are not comparable have None in every list and do not count in the mean.
    """
    rows = (
        list(range(len(logits))) if is_comparable is None else [i for i, x in enumerate(is_comparable) if x]
    )
    kept_logits, kept_baseline = logits[rows], baseline[rows]
    log_q, log_p = (x.double().log_softmax(-1) for x in (kept_logits, kept_baseline))
    result, ids = _describe_log_probs(kept_logits, log_q, [references[i] for i in rows], top_k)
    before = log_p.gather(-1, ids[:, :SHOWN_TERMS]).exp()
    result["top"]["before"] = [round_numbers(row) for row in before.tolist()]
    kl = _sum_kl(log_p, log_q)
    is_changed = (kept_logits.argmax(-1) != kept_baseline.argmax(-1)).tolist()
    result |= {
        "kl": [round_number(value) if isfinite(value) else None for value in kl.tolist()],
        "mean_kl": round_number(float(kl.mean())) if rows and kl.isfinite().all() else None,
        "changed": [row for row, changes in zip(rows, is_changed, strict=True) if changes],
    }
    if len(rows) < len(logits):
        for part, names in (
            (result, ("rank", "p", "kl", "logsumexp")),
            (result["top"], ("ids", "p", "before")),
        ):
            part |= {name: _spread_rows(part[name], rows, len(logits)) for name in names}
    return result


def round_number(x: float) -> float:
    """Six significant digits."""
    return float(f"{x:.6g}")


def round_numbers(numbers: Sequence[float]) -> list[float]:
    """Six significant digits of each number."""
    return [round_number(x) for x in numbers]


def _spread_rows(values: Sequence[Any], rows: Sequence[int], n: int) -> list[Any]:
    """Values of some of ``n`` rows, with None in the others."""
    spread: list[Any] = [None] * n
    for row, value in zip(rows, values, strict=True):
        spread[row] = value
    return spread
