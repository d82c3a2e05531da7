"""Tests of kernels/logsumexp.py."""

from __future__ import annotations

import pytest
import torch

from polyhead.kernels.logits import max_and_logsumexp


@pytest.mark.parametrize("width", [1, 15, 16, 17, 1000])
@pytest.mark.parametrize("way", ["kernel", "torch"])
def test_logarithms_of_sums_are_those_of_log_softmax(width, way, monkeypatch):
    if way == "torch":
        monkeypatch.setattr("polyhead.kernels.logits.load_kernels", lambda: None)
    x = 30 * torch.randn(5, width) + torch.tensor([[0], [200], [-200], [1e4], [0]])
    x[4, width // 2 :] = -torch.inf  # where width is 1, the whole row
    most, log_sum = max_and_logsumexp(x)
    wanted = x.double().logsumexp(-1, keepdim=True) - x.double().amax(-1, keepdim=True)
    assert torch.equal(most, x.amax(-1, keepdim=True))
    torch.testing.assert_close(log_sum[:4].double(), wanted[:4], rtol=1e-6, atol=1e-6)
    assert width == 1 or torch.isclose(log_sum[4].double(), wanted[4], rtol=1e-6, atol=1e-6)
    x[1, -1] = torch.nan
    assert max_and_logsumexp(x)[1][1].isnan()
