"""The likeliest next tokens, without a copy of all logits and without sorting a whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead.fast.log_sums import log_sums

BLOCK = 64  # tokens looked at together
CHUNK = 2**19  # logits looked at together: they stay inside the processor's cache


def likeliest(
    logits: Tensor, k: int, banned: Sequence[int] = (), forced: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k best next tokens of each row, (N, V) -> log-probabilities (N, k), best first, and ids (N, k).

    ``banned`` are tokens that may not come. ``forced`` (N,) is the token that must come, -1 for any. What is
    forbidden gets -inf and the rest keeps its probability under the model. At most V tokens come back. Logits may
    be of any precision; probabilities are fp32.
    """
    k, rows = min(k, logits.size(1)), max(1, CHUNK // logits.size(1))
    found = []
    for start in range(0, len(logits), rows):
        x = logits[start : start + rows].float()
        most, log_sum = log_sums(x)
        if banned or forced is not None:
            x = x.clone() if x.dtype == logits.dtype else x
        if banned:
            x[:, list(banned)] = float("-inf")
        if forced is not None:
            _force(x, forced[start : start + rows])
        values, ids = top(x, k)
        found.append((values - most - log_sum, ids))
    return torch.cat([values for values, _ in found]), torch.cat([ids for _, ids in found])


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As ``x.topk(k)`` over rows (N, V), or as ``x.max`` for one: the k greatest lie in the k blocks with the greatest maxima.

    Finding maxima is 15 times as fast as sorting and 7 times as fast as finding where they are.
    """
    width = x.size(1)
    if width < 4 * k * BLOCK:
        return _best(x, k)
    whole = width // BLOCK * BLOCK
    maxima = x[:, :whole].unflatten(1, (-1, BLOCK)).amax(-1)
    if whole < width:
        maxima = torch.cat([maxima, x[:, whole:].amax(-1, keepdim=True)], 1)
    blocks = _best(maxima, k)[1]
    near = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device=x.device)).flatten(1)
    values, within = _best(
        x.gather(1, near.clamp(max=width - 1)).masked_fill_(near >= width, float("-inf")), k
    )
    # where hardly anything is allowed, what lies beyond the last token is as good as the rest; it must still be a token
    return values, near.gather(1, within).clamp_(max=width - 1)


def _best(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, ids = x.max(-1, keepdim=True) if k == 1 else x.topk(k)
    return values, ids


def _force(logits: Tensor, forced: Tensor) -> None:
    rows = (forced >= 0).nonzero()[:, 0]
    tokens = forced[rows]
    kept = logits[rows, tokens]
    logits[rows] = float("-inf")
    logits[rows, tokens] = kept
