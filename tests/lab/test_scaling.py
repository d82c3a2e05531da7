import math

import pytest
import torch

from polyhead_lab import scaling
from polyhead_lab.registry import LabContext
from polyhead_lab.statistics import mean_interval, verdict_within


def test_variance_and_saturation_of_scores():
    torch.manual_seed(0)
    for d_k in (4, 64):
        assert verdict_within([v / d_k for v in scaling.measure_variance(d_k, 5_000)], 1.0, 0.05) is True
    variance = mean_interval(scaling.measure_model_variance(LabContext(1, True))).mean
    assert 0.6 < variance < 1.5  # of projected queries and keys it is about the assumed one
    torch.manual_seed(0)
    equal, large = scaling.measure_saturation(8, 0.0, 40), scaling.measure_saturation(8, 1e6, 40)
    n = scaling.N_KEYS
    slope = math.sqrt(n - 1) / n  # diag(1/n) - 1/n^2
    assert (equal.entropy, equal.peak, equal.slope) == pytest.approx((1.0, 1 / n, slope))
    assert (large.entropy, large.peak, large.slope) == pytest.approx((0.0, 1.0, 0.0), abs=1e-9)


def test_jacobian_norm_matches_autograd():
    torch.manual_seed(0)
    for scale in (0.1, 1.0, 30.0):
        scores = torch.randn(5, 7, dtype=torch.double) * scale
        jacobians = [torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row) for row in scores]
        expected = [float(jacobian.square().sum().sqrt()) for jacobian in jacobians]
        assert scaling.jacobian_norm(scores.softmax(-1)).tolist() == pytest.approx(expected, rel=1e-6)
