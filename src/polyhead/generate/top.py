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
    rows = max(1, CHUNK // logits.size(1))
    if len(logits) > rows:
        parts = logits.split(rows)
        forces = [None] * len(parts) if forced is None else forced.split(rows)
        found = [likeliest(part, k, banned, force) for part, force in zip(parts, forces, strict=True)]
        return torch.cat([values for values, _ in found]), torch.cat([ids for _, ids in found])
    x = logits.float()
    most, log_sum = log_sums(x)
    if banned:
        x = x.index_fill(1, torch.tensor(banned, device=x.device), float("-inf"))
    if forced is not None:
        x = _alone(x, forced)
    values, ids = top(x, min(k, x.size(1)))
    return values - most - log_sum, ids


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As ``x.topk(k)`` over rows (N, V): the k greatest lie in the k blocks with the greatest maxima, or behind the last.

    Finding maxima is 15 times as fast as sorting.
    """
    width = x.size(1)
    if k == 1:
        ids = _greatest(x)
        return x.gather(1, ids), ids
    if width < 4 * k * BLOCK:
        values, ids = x.topk(k)
        return values, ids
    whole = width // BLOCK * BLOCK
    blocks = x[:, :whole].unflatten(1, (-1, BLOCK)).amax(-1).topk(k).indices
    near = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device=x.device)).flatten(1)
    if whole < width:
        near = torch.cat([near, torch.arange(whole, width, device=x.device).expand(len(x), -1)], 1)
    values, within = x.gather(1, near).topk(k)
    return values, near.gather(1, within)


def _greatest(x: Tensor) -> Tensor:
    """Where the greatest number of each row stands first: (N, V) -> (N, 1)."""
    if x.device.type != "cpu":
        return x.argmax(1, keepdim=True)
    return torch.from_numpy(x.numpy().argmax(1, keepdims=True))  # in a tenth of torch's time


def _alone(logits: Tensor, forced: Tensor) -> Tensor:
    """Where a token is forced, nothing else can come."""
    rows = (forced >= 0).nonzero()[:, 0]
    tokens, alone = forced[rows], logits.clone()
    alone[rows] = float("-inf")
    alone[rows, tokens] = logits[rows, tokens]
    return alone
