"""The most likely next tokens, without copying all logits or sorting the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead.generation.decoding.no_repeat_ngram import ban_tokens
from polyhead.kernels.logits import max_and_logsumexp, topk_log_softmax, topk_rows

_CHUNK_LOGITS = 2**19  # logits per chunk: they stay in the processor's cache


def topk_log_probs(
    logits: Tensor,
    k: int,
    banned_ids: Sequence[int] = (),
    forced_ids: Tensor | None = None,
    repeated_ids: Sequence[Sequence[int]] = (),
    masked_logits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The k best next tokens of each row, (N, V) -> log-probabilities (N, k), best first, and ids (N, k).

    ``banned_ids`` are banned in all rows, ``repeated_ids`` in each row; ``masked_logits`` (N, V) are the
    logits with -inf at further banned tokens. ``forced_ids`` (N,) are tokens that override every ban, -1 for
    none. Banned tokens get -inf; the others keep their probability under the model. At most V tokens are
    returned. Logits may have any precision; probabilities are fp32.
    """
    if forced_ids is None and masked_logits is None and not any(repeated_ids):
        found = topk_log_softmax(logits, min(k, logits.size(1)), banned_ids)
        if found is not None:
            return found
    rows = max(1, _CHUNK_LOGITS // logits.size(1))
    if len(logits) > rows:
        parts = logits.split(rows)
        forces = [None] * len(parts) if forced_ids is None else forced_ids.split(rows)
        shapes = [None] * len(parts) if masked_logits is None else masked_logits.split(rows)
        results = [
            topk_log_probs(part, k, banned_ids, force, repeated_ids[rows * i : rows * (i + 1)], shape)
            for i, (part, force, shape) in enumerate(zip(parts, forces, shapes, strict=True))
        ]
        return torch.cat([values for values, _ in results]), torch.cat([ids for _, ids in results])
    x = logits.float()
    max_logit, log_sum = max_and_logsumexp(x)
    allowed_logits = ban_tokens(x if masked_logits is None else masked_logits.float(), repeated_ids)
    if forced_ids is not None:
        allowed_logits, banned_ids = _force_tokens(x, allowed_logits, forced_ids, banned_ids), ()
    values, ids = topk_rows(allowed_logits, min(k, x.size(1)), banned_ids)
    return values - max_logit - log_sum, ids


def _force_tokens(
    logits: Tensor, allowed_logits: Tensor, forced_ids: Tensor, banned_ids: Sequence[int]
) -> Tensor:
    """Mask all but the forced token in rows that have one, and the banned tokens in the other rows."""
    rows = (forced_ids >= 0).nonzero()[:, 0]
    banned_index = torch.tensor(list(banned_ids), dtype=torch.int64, device=allowed_logits.device)
    tokens, masked_logits = forced_ids[rows], allowed_logits.index_fill(1, banned_index, float("-inf"))
    masked_logits[rows] = float("-inf")
    masked_logits[rows, tokens] = logits[rows, tokens]
    return masked_logits
