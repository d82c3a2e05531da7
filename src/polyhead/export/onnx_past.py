"""A cache for ONNX graphs, which have no state: keys and values are input and output tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead.nn.kv import KV, WeightsHook, visible

KVPair = tuple[Tensor, Tensor]
"""Keys (B, K, P, D) and values (B, K, P, Dv) of the P tokens so far."""


class PastKeyValues:
    """The part of ``Cache`` that a decoding step uses. After it, the step's tokens are appended to the
    previous ones.

    ``slots`` (1|B, P + T) are the positions of all tokens, including those of the step, -1 for padding;
    ``pos`` (1|B, T) are those of the step's queries.
    """

    def __init__(self, pairs: Sequence[KVPair], slots: Tensor, pos: Tensor) -> None:
        slot_pos = slots[:, None]
        mask = visible(pos, slot_pos, causal=True)
        self.layers = [PastLayer(k, v, slot_pos, mask) for k, v in pairs]

    @property
    def pairs(self) -> list[KVPair]:
        """Return the keys and values of each layer."""
        return [(layer.k, layer.v) for layer in self.layers]


class PastLayer:
    """Keys and values of one layer."""

    weights_hook: WeightsHook | None = None

    def __init__(self, k: Tensor, v: Tensor, pos: Tensor, mask: Tensor) -> None:
        self.k, self.v, self.pos, self.mask = k, v, pos, mask

    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, P + T, D) out."""
        self.k, self.v = torch.cat([self.k, kv.k], 2), torch.cat([self.v, kv.v], 2)
        return KV(self.k, self.v, self.pos, mask=self.mask)
