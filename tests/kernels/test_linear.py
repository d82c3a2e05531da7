"""Which linear layer packed weights get."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from polyhead.kernels.linear import make_linear


def test_bf16_that_no_kernel_packs_is_computed_by_torch(monkeypatch):
    """A width that our kernel does not take, on a processor for which oneDNN has no bf16."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    torch.manual_seed(0)
    weight, x = torch.randn(5, 3).bfloat16(), torch.randn(2, 4, 3).bfloat16()
    for bias in (None, torch.randn(5).bfloat16()):
        layer = make_linear(weight, bias)
        assert type(layer) is nn.Linear
        assert torch.equal(layer(x), F.linear(x, weight, bias))
        assert not any(p.requires_grad for p in layer.parameters())
