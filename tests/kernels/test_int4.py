import torch
from tests.kernels.build_extension_helpers import needs_kernels, quantize_rows

from polyhead.kernels.int_linear import GROUP_SIZE, MAX_GROUP_SCALE, Int4, Int8, Int8Linear
from polyhead.kernels.linear import PANEL


def test_int4_scales_are_nearly_optimal_or_exact():
    """Multiples of 3 and -5 of the row's scale, up to 8 times."""
    weight = torch.randn(40, 6 * GROUP_SIZE) * torch.rand(40, 1)
    weight[:, 7] *= 12  # an outlier, which makes the scale of its row large
    quantized, (real, _) = Int4(weight), quantize_rows(weight)
    real = torch.where(real == 0, 0, weight.double() / quantized.scales.double()[:, None])
    real = real.view(40, 6, GROUP_SIZE)
    error = (quantized.values.double().view(40, 6, GROUP_SIZE) - real).square().sum(-1)
    scales = [*range(-MAX_GROUP_SCALE, 0), *range(1, MAX_GROUP_SCALE + 1)]
    errors = [((real / f).round().clamp(-8, 7) * f - real).square().sum(-1) for f in scales]
    least = torch.stack(errors).amin(0)
    assert (error >= least * (1 - 1e-4)).all() and error.sum() < 1.03 * least.sum()
    # each value is its 4-bit value times the scale of its group
    fours, factors = quantized.int4_values, quantized.group_scales
    assert fours.min() >= -8 and fours.max() <= 7
    assert factors.abs().max() <= MAX_GROUP_SCALE
    assert torch.equal((fours.int() * factors.int()).flatten(1), quantized.values.int())
    weight = torch.zeros(2, 2 * GROUP_SIZE)
    weight[:, 0] = torch.tensor([127.0, -127.0])
    numbers = torch.tensor([*range(-8, 8)] * 2, dtype=torch.float32)
    weight[0, GROUP_SIZE:], weight[1, GROUP_SIZE:] = 3 * numbers, -5 * numbers
    quantized = Int4(0.5 * weight)
    assert torch.equal(quantized.values[:, GROUP_SIZE:].float(), weight[:, GROUP_SIZE:])
    assert torch.equal(quantized.group_scales[:, 1, 0], torch.tensor([3, -5], dtype=torch.int8))
    assert torch.equal(quantized.scales, torch.tensor([0.5, 0.5]))


@needs_kernels
def test_int4_panels_take_half_the_memory():
    weight = torch.randn(2 * PANEL, 8 * GROUP_SIZE)
    four, eight = (Int8Linear(bits(weight), None).panels.nbytes for bits in (Int4, Int8))
    assert (four, eight) == (weight.numel() // 2 + weight.numel() // GROUP_SIZE, weight.numel())
