import torch

from polyhead.kernels.int_linear import Int8, Int8LinearFallback


def test_int8_error_is_that_of_two_roundings():
    x, weight = torch.randn(50, 300), torch.randn(70, 300)
    # half of a quantization step
    a, b = x.abs().amax(1, keepdim=True) / 254, weight.abs().amax(1, keepdim=True) / 254
    worst = a * weight.abs().sum(1) + x.abs().sum(1, keepdim=True) * b.T + 300 * a * b.T
    error = (Int8LinearFallback(Int8(weight), None)(x) - x @ weight.T).abs()
    assert error.le(worst).all() and 0.001 < error.norm() / (x @ weight.T).norm() < 0.02
