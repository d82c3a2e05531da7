"""Adafactor for parameters that are split over processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from polyhead.train.distributed.local_tensor import get_whole, split_like


class SplitAdafactor(torch.optim.Adafactor):
    """``torch.optim.Adafactor`` whose parameters are DTensors.

    Its means over rows and columns and the root mean square of a weight need whole matrices: each parameter
    is gathered for its own step. The state, which is small, is whole on every rank.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One optimizer step."""
        assert closure is None
        groups = self.param_groups
        try:
            for group in groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    whole = nn.Parameter(get_whole(p.detach()).clone())
                    whole.grad = get_whole(p.grad)
                    self.state[whole] = self.state.pop(p, {})
                    self.param_groups = [{**group, "params": [whole]}]
                    super().step()
                    self.state[p] = self.state.pop(whole)
                    p.copy_(split_like(whole.detach(), p))
        finally:
            self.param_groups = groups
