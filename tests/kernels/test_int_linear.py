import copy

import pytest
import torch
from tests.kernels.build_extension_helpers import CONFIGS, DECODING, needs_kernels, quantize_rows

from polyhead import Choice, build
from polyhead.generation.decoding.beam_search import greedy_search
from polyhead.kernels.attention import PackedAttention
from polyhead.kernels.int_linear import Int4, Int8, Int8Linear, Int8LinearFallback
from polyhead.kernels.linear import PANEL
from polyhead.kernels.pack_model import linear_factory, pack_model, packed_dtype

KERNEL = pytest.param(Int8Linear, marks=needs_kernels, id="kernel")
KINDS = pytest.mark.parametrize("kind", [KERNEL, pytest.param(Int8LinearFallback, id="torch")])
BITS = pytest.mark.parametrize("bits", [Int8, Int4], ids=["8 bits", "4 bits"])
DTYPES = pytest.mark.parametrize("dtype", ["int8", "int4"])
SHAPES = [(1, 8, 1), (5, 24, 63), (6, 39, 64), (7, 17, 65), (13, 1, 130), (40, 1111, 200), (400, 20, 70)]
CONFIG = CONFIGS["grouped"]


def multiply_quantized(x, weight, bits):
    """The product of the quantized operands in fp64; ``Int4`` itself quantizes weights of 4 bits."""
    (a, a_size), (b, b_size) = quantize_rows(x), quantize_rows(weight)
    if bits is Int4:
        b = Int4(weight).values.double()
    return (a @ b.T) * a_size * b_size.T


def draw_operands(bits, rows, inputs, outputs, dtype=torch.float32):
    """Rows of different magnitude and their product; values halfway between two steps are set to 0."""
    x = torch.randn(rows, inputs, dtype=torch.double) * 10.0 ** torch.randint(-6, 6, (rows, 1))
    x, weight, bias = x.to(dtype), torch.randn(outputs, inputs) * torch.rand(outputs, 1), torch.randn(outputs)
    for y in (x, weight):
        between = (((y.double() / quantize_rows(y)[1]) % 1) - 0.5).abs() < 1e-4
        y[between] = 0
    return x, weight, bias, multiply_quantized(x, weight, bits)


@BITS
@KINDS
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_products_of_quantized_values(kind, bits, rows, inputs, outputs):
    x, weight, bias, expected = draw_operands(bits, rows, inputs, outputs)
    scale, quantized = expected.abs().amax(1, keepdim=True), bits(weight)
    assert (kind(quantized, None)(x) - expected).abs().le(2e-6 * scale).all()
    error = kind(quantized, bias)(x) - (expected + bias.double())
    assert error.abs().le(2e-6 * (scale + bias.abs().max())).all()
    batched = kind(quantized, None)(x.expand(2, 3, -1, -1))
    assert batched.shape == (2, 3, rows, outputs)
    assert torch.equal(batched[1, 2], kind(quantized, None)(x))


@needs_kernels
@pytest.mark.parametrize("rows", [1, 6, 7, 16, 200])
@pytest.mark.parametrize("inputs", [4, 516, 2048])
@pytest.mark.parametrize("lowest", [-1, 0])  # inputs that are not negative have a path of their own
def test_sums_of_the_largest_products_are_exact(rows, inputs, lowest):
    x, weight = torch.randn(rows, inputs).sign().clamp(min=lowest), torch.randn(70, inputs).sign()
    x[0], weight[0] = 1, -1  # the largest sum
    x[1:, 0] = 1
    sums, scale = (127 * 127 * (x.double() @ weight.T.double())).float(), torch.tensor(1.0) / 127
    assert torch.equal(Int8Linear(Int8(weight), None)(x), sums * (scale * scale))


@BITS
@KINDS
def test_bf16_inputs_give_bf16(kind, bits):
    x, weight, bias, expected = draw_operands(bits, 9, 64, 130, torch.bfloat16)
    actual = kind(bits(weight), bias)(x)
    assert actual.dtype == torch.bfloat16
    atol = 2**-8 * float(bias.abs().max())
    torch.testing.assert_close(actual.double(), expected + bias.double(), rtol=2**-8, atol=atol)


@BITS
@KINDS
def test_zero_rows_and_nonfinite_values(kind, bits):
    weight, bias = torch.randn(70, 20), torch.randn(70)
    x = torch.randn(6, 20)
    x[1], x[2, 3], x[3, 19], x[4, 0] = 0, torch.nan, torch.inf, -torch.inf
    actual = kind(bits(weight), bias)(x)
    assert torch.equal(actual[1], bias) and actual[2:5].isnan().all()
    assert actual[[0, 5]].isfinite().all()
    weight[3], weight[4, 6], weight[5, 7] = 0, torch.nan, torch.inf
    actual = kind(bits(weight), bias)(x)
    assert torch.equal(actual[[0, 5], 3], bias[3].expand(2)) and actual[:, 4].isnan().all()
    assert not actual[:, 5].isfinite().any()
    assert actual[[0, 1, 5]][:, [2, 6]].isfinite().all()


@BITS
def test_subnormal_weights_keep_their_sign(bits):
    """The scale of subnormal numbers has few bits, so 127 scales may be less than the largest number."""
    weight = torch.full((2, 4), 2.6e-43) * torch.tensor([[1.0], [-1.0]])
    actual = bits(weight).values
    assert (actual[0] >= 0).all() and (actual[1] <= 0).all()


@BITS
@needs_kernels
def test_rows_and_slices_do_not_depend_on_others(bits):
    x, layer = torch.randn(14, 900), Int8Linear(bits(torch.randn(70, 900)), torch.randn(70))
    for rows in (slice(0, 1), slice(3, 5), slice(0, 6), slice(2, 13)):
        assert torch.equal(layer(x[rows]), layer(x)[rows])
    layer = Int8Linear(bits(torch.randn(3 * PANEL + 5, 10)), torch.randn(3 * PANEL + 5))
    x = torch.randn(3, 10)
    for first, end in ((0, PANEL), (PANEL, 2 * PANEL), (PANEL, 3 * PANEL + 5), (2 * PANEL, 3 * PANEL + 1)):
        assert torch.equal(layer.forward_slice(x, first, end), layer(x)[:, first:end])


def generate(model, cache=None):
    source = torch.randint(5, 97, (3, 11), generator=torch.Generator().manual_seed(2))
    return greedy_search(model, source, None, **DECODING, cache=cache and Choice(cache))


@DTYPES
@needs_kernels
@pytest.mark.parametrize("cache", ["static", "paged", "quantized"])
def test_kernels_and_torch_generate_the_same_tokens(monkeypatch, cache, dtype):
    plain = build(CONFIG, seed=1).eval()
    fast = pack_model(copy.deepcopy(plain), linear_factory(dtype))
    assert sum(isinstance(part, PackedAttention) for part in fast.modules()) == 6
    actual = generate(fast, cache)
    monkeypatch.setattr("polyhead.kernels.int_linear.load_kernels", lambda: None)
    monkeypatch.setattr("polyhead.kernels.attention.load_kernels", lambda: None)
    other = pack_model(copy.deepcopy(plain), linear_factory(dtype))
    assert any(isinstance(part, Int8LinearFallback) for part in other.modules())
    assert not any(isinstance(part, Int8Linear | PackedAttention) for part in other.modules())
    assert packed_dtype(fast) == packed_dtype(other) == dtype
    expected = generate(other, cache)
    assert [x.tokens for x in actual] == [x.tokens for x in expected]
    # values near the middle of two steps may be rounded to either
    assert [x.log_prob for x in actual] == pytest.approx([x.log_prob for x in expected], rel=5e-3)


@pytest.mark.parametrize(("dtype", "min_error", "max_error"), [("int8", 1e-4, 0.05), ("int4", 0.05, 0.4)])
def test_quantization_error_of_logits(dtype, min_error, max_error):
    plain = build(CONFIG, seed=1).eval()
    packed = pack_model(copy.deepcopy(plain), linear_factory(dtype))
    source, target = torch.randint(5, 97, (4, 20)), torch.randint(5, 97, (4, 15))
    with torch.inference_mode():
        expected, actual = (model(source, target) for model in (plain, packed))
    error = (actual - expected).norm() / expected.norm()
    assert min_error < error < max_error


@needs_kernels
def test_int4_models_have_an_int8_head():
    model = pack_model(build(CONFIG, seed=1).eval(), linear_factory("int4"))
    dtypes = {name: part.dtype for name, part in model.named_modules() if isinstance(part, Int8Linear)}
    assert {name: dtype for name, dtype in dtypes.items() if dtype == "int8"} == {"head.linear": "int8"}
    assert set(dtypes.values()) == {"int4", "int8"}


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_quantizes_to_the_bits_of_torch(dtype, monkeypatch):
    weight = torch.randn(300, 517).mul_(10.0 ** torch.randint(-40, 30, (300, 1)))
    weight[3], weight[4, 7], weight[5, 8], weight[6, 9] = 0, float("nan"), float("inf"), -float("inf")
    weight[7] = torch.arange(517) / 2 - 127  # halfway between two integers
    weight = weight.to(dtype).T.contiguous().T
    actual = Int8(weight)
    monkeypatch.setattr("polyhead.kernels.int_linear.load_kernels", lambda: None)
    expected = Int8(weight)
    assert torch.equal(actual.values, expected.values)
    torch.testing.assert_close(actual.scales, expected.scales, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(actual.sums, actual.values.sum(1)) and torch.equal(actual.sums, expected.sums)
    assert not actual.values[3:7].any() and actual.values[7].abs().max() == 127
