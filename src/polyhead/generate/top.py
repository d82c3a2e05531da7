"""The likeliest next tokens, without a copy of all logits and without sorting a whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead.fast.best import best
from polyhead.fast.log_sums import log_sums
from polyhead.generate.repeats import barred

CHUNK = 2**19  # logits looked at together: they stay inside the processor's cache


def likeliest(
    logits: Tensor,
    k: int,
    banned: Sequence[int] = (),
    forced: Tensor | None = None,
    again: Sequence[Sequence[int]] = (),
    shaped: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The k best next tokens of each row, (N, V) -> log-probabilities (N, k), best first, and ids (N, k).

    ``banned`` are tokens that may not come, ``again`` those of each row; ``shaped`` (N, V) are the logits where others, too,
    have -inf. ``forced`` (N,) is the token that must come whatever else holds, -1 for any. What is forbidden gets -inf and the
    rest keeps its probability under the model. At most V tokens come back. Logits may be of any precision; probabilities are fp32.
    """
    rows = max(1, CHUNK // logits.size(1))
    if len(logits) > rows:
        parts = logits.split(rows)
        forces = [None] * len(parts) if forced is None else forced.split(rows)
        shapes = [None] * len(parts) if shaped is None else shaped.split(rows)
        found = [
            likeliest(part, k, banned, force, again[rows * i : rows * (i + 1)], shape)
            for i, (part, force, shape) in enumerate(zip(parts, forces, shapes, strict=True))
        ]
        return torch.cat([values for values, _ in found]), torch.cat([ids for _, ids in found])
    x = logits.float()
    most, log_sum = log_sums(x)
    allowed = barred(x if shaped is None else shaped.float(), again)
    if forced is not None:
        allowed, banned = _alone(x, allowed, forced, banned), ()
    values, ids = best(allowed, min(k, x.size(1)), banned)
    return values - most - log_sum, ids


def _alone(logits: Tensor, allowed: Tensor, forced: Tensor, banned: Sequence[int]) -> Tensor:
    """Where a token is forced, nothing else can come; elsewhere none of those that are banned."""
    rows = (forced >= 0).nonzero()[:, 0]
    never = torch.tensor(list(banned), dtype=torch.int64, device=allowed.device)
    tokens, alone = forced[rows], allowed.index_fill(1, never, float("-inf"))
    alone[rows] = float("-inf")
    alone[rows, tokens] = logits[rows, tokens]
    return alone
