"""Tests of kernels/int4.py."""

from __future__ import annotations

import torch
from tests.kernels.build_extension_helpers import needs_kernels

from polyhead.kernels.int4 import GROUP_SIZE, MAX_GROUP_SCALE, Int4
from polyhead.kernels.int8 import Int8
from polyhead.kernels.int_linear import Int8Linear
from polyhead.kernels.linear import PANEL


def wholes(x):
    """Of each row in double precision: whole numbers from -127 to 127, and what 1 of them is worth."""
    size = x.double().abs().amax(1, keepdim=True) / 127
    return (x.double() / torch.where(size == 0, 1, size)).round(), size


def test_four_bits_lose_hardly_more_than_the_best_of_all_factors_would():
    weight = torch.randn(40, 6 * GROUP_SIZE) * torch.rand(40, 1)
    weight[:, 7] *= 12  # a row with one that is far larger leaves little for its others
    whole, (real, _) = Int4(weight), wholes(weight)
    real = torch.where(real == 0, 0, weight.double() / whole.scales.double()[:, None]).view(40, 6, GROUP_SIZE)
    off = (whole.values.double().view(40, 6, GROUP_SIZE) - real).square().sum(-1)
    each = torch.stack(
        [
            ((real / f).round().clamp(-8, 7) * f - real).square().sum(-1)
            for f in [*range(-MAX_GROUP_SCALE, 0), *range(1, MAX_GROUP_SCALE + 1)]
        ]
    )
    least = each.amin(0)
    assert (off >= least * (1 - 1e-4)).all()
    assert off.sum() < 1.03 * least.sum()
    # every number is a factor of its 32 times what 4 bits hold
    fours, factors = whole.int4_values, whole.group_scales
    assert fours.min() >= -8
    assert fours.max() <= 7
    assert factors.abs().max() <= MAX_GROUP_SCALE
    assert torch.equal((fours.int() * factors.int()).flatten(1), whole.values.int())


def test_what_four_bits_hold_exactly_comes_back_exactly():
    """A group whose largest is 8 times a whole number, in a row whose largest is 127 of them."""
    weight = torch.zeros(2, 2 * GROUP_SIZE)
    weight[:, 0] = torch.tensor([127.0, -127.0])
    numbers = torch.tensor([*range(-8, 8)] * 2, dtype=torch.float32)
    weight[0, GROUP_SIZE:], weight[1, GROUP_SIZE:] = 3 * numbers, -5 * numbers
    whole = Int4(0.5 * weight)
    assert torch.equal(whole.values[:, GROUP_SIZE:].float(), weight[:, GROUP_SIZE:])
    assert torch.equal(whole.group_scales[:, 1, 0], torch.tensor([3, -5], dtype=torch.int8))
    assert torch.equal(whole.scales, torch.tensor([0.5, 0.5]))


@needs_kernels
def test_four_bits_take_little_more_than_half_of_eight():
    weight = torch.randn(2 * PANEL, 8 * GROUP_SIZE)
    four, eight = (Int8Linear(bits(weight), None).panels.nbytes for bits in (Int4, Int8))
    assert (four, eight) == (weight.numel() // 2 + weight.numel() // GROUP_SIZE, weight.numel())
