"""A cache of a graph that keeps nothing: what a decoder remembers comes in as tensors and goes out as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead.nn.kv import KV, Watcher, visible

Pair = tuple[Tensor, Tensor]
"""Keys (B, K, P, D) and values (B, K, P, Dv) of the P tokens so far."""


class Past:
    """As much of a ``Cache`` as a decoder's step asks for; afterwards the tokens of the step stand behind those before.

    ``slots`` (1|B, P + T) are the positions of all tokens, those of the step included, -1 where there is none; ``pos``
    (1|B, T) are those of the step's queries.
    """

    def __init__(self, given: Sequence[Pair], slots: Tensor, pos: Tensor) -> None:
        held = slots[:, None]
        seen = visible(pos, held, causal=True)
        self.layers = [PastLayer(k, v, held, seen) for k, v in given]

    @property
    def pairs(self) -> list[Pair]:
        """What is remembered now."""
        return [(layer.k, layer.v) for layer in self.layers]


class PastLayer:
    """What one layer remembers."""

    watcher: Watcher | None = None

    def __init__(self, k: Tensor, v: Tensor, pos: Tensor, seen: Tensor) -> None:
        self.k, self.v, self.pos, self.seen = k, v, pos, seen

    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, P + T, D) out."""
        self.k, self.v = torch.cat([self.k, kv.k], 2), torch.cat([self.v, kv.v], 2)
        return KV(self.k, self.v, self.pos, seen=self.seen)
