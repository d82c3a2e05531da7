"""The numbers of the experiments against closed forms and against what is written out by hand."""

import math

import pytest
import torch

from polyhead.lab import scaling
from polyhead.lab.registry import LabContext
from polyhead.lab.statistics import mean_interval, verdict_within

QUICK = LabContext(1, True)


def test_the_variance_of_a_dot_product_is_d_k():
    torch.manual_seed(0)
    for d_k in (4, 64):
        assert verdict_within([v / d_k for v in scaling.measure_variance(d_k, 5_000)], 1.0, 0.05) is True


def test_the_norm_of_the_jacobian_is_that_of_autograd():
    torch.manual_seed(0)
    for sharp in (0.1, 1.0, 30.0):
        scores = torch.randn(5, 7, dtype=torch.double) * sharp
        wanted = [
            float(torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row).square().sum().sqrt())
            for row in scores
        ]
        assert scaling.jacobian_norm(scores.softmax(-1)).tolist() == pytest.approx(wanted, rel=1e-6)


def test_softmax_of_equal_scores_mixes_and_of_huge_ones_chooses():
    torch.manual_seed(0)
    even, sharp = scaling.measure_saturation(8, 0.0, 40), scaling.measure_saturation(8, 1e6, 40)
    n = scaling.N_KEYS
    assert even.entropy == pytest.approx(1.0)
    assert even.peak == pytest.approx(1 / n)
    assert even.slope == pytest.approx(math.sqrt(n - 1) / n)  # diag(1/n) - 1/n^2
    assert (sharp.entropy, sharp.peak, sharp.slope) == pytest.approx((0.0, 1.0, 0.0), abs=1e-9)


def test_a_projected_query_times_key_has_about_the_assumed_variance():
    assert 0.6 < mean_interval(scaling.measure_model_variance(QUICK)).mean < 1.5
