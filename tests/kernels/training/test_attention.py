import pytest
import torch
import torch.nn.functional as F
from tests.kernels.build_extension_helpers import needs_kernels

from polyhead.kernels.training.attention import AttentionCall, AttentionFunction, can_attend

pytestmark = needs_kernels

# B, T, S, H, K, D, Dv
SIZES = [(1, 1, 1, 1, 1, 16, 16), (2, 7, 7, 2, 2, 32, 32), (1, 70, 70, 2, 1, 64, 64)]
SIZES += [(2, 33, 70, 4, 2, 48, 80), (2, 70, 5, 2, 2, 16, 32)]
SIZES += [(1, 130, 130, 1, 1, 128, 128), (1, 200, 200, 3, 1, 32, 32)]


def draw_qkv(size, dtype=torch.float32):
    """Queries, keys and values as slices of one buffer, as a projection returns them."""
    B, T, S, H, K, D, Dv = size
    widths = H * D, K * D, K * Dv
    x, memory = (torch.randn(B, n, sum(widths)).to(dtype).split(widths, -1) for n in (T, S))
    q, k, v = x[0].unflatten(2, (H, D)), memory[1].unflatten(2, (K, D)), memory[2].unflatten(2, (K, Dv))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def reference_attention(q, k, v, call):
    """The formula in float64: softmax(q kᵀ scale + bias) v, 0 for queries without keys."""
    group = q.size(2) // k.size(2)
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    if call.cos is not None:
        q, k = rotate_reference(q, call), rotate_reference(k, call)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * (q.size(-1) ** -0.5 if call.scale is None else call.scale)
    scores = scores if call.bias is None else scores + call.bias
    is_visible = torch.ones(scores.shape, dtype=torch.bool)
    is_visible = is_visible.tril() if call.causal else is_visible
    is_visible = is_visible if call.mask is None else is_visible & call.mask
    weights = scores.masked_fill(~is_visible, -1e4).softmax(-1) * is_visible
    return (weights @ v).transpose(1, 2)


def rotate_reference(x, call):
    """(B, H, T, D), as complex numbers times e^iθ."""
    cos, sin = (angle.double()[:, None] for angle in (call.cos, call.sin))
    width = 2 * cos.size(-1)
    rotary, rest = x[..., :width], x[..., width:]
    pairs = rotary.unflatten(-1, (-1, 2)) if call.is_interleaved else rotary.unflatten(-1, (2, -1)).mT
    rotary = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin))
    return torch.cat([(rotary if call.is_interleaved else rotary.mT).flatten(-2), rest], -1)


def output_and_gradients(out, inputs, grad):
    return [out.detach(), *torch.autograd.grad(out, inputs, grad.to(out.dtype))]


def check(size, call):
    qkv = draw_qkv(size)
    grad = torch.randn(*qkv[0].shape[:3], size[-1])
    results = output_and_gradients(AttentionFunction.apply(*qkv, call), qkv, grad)
    references = output_and_gradients(reference_attention(*qkv, call), qkv, grad)
    for result, reference in zip(results, references, strict=True):
        torch.testing.assert_close(result.double(), reference.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_outputs_and_gradients_are_those_of_float64(size, causal):
    check(size, AttentionCall(causal=causal, scale=0.3))


@pytest.mark.parametrize("shape", [(2, 1, 1, 70), (1, 4, 1, 70), (2, 1, 33, 70), (2, 4, 33, 70)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_masks_and_biases(shape, causal):
    """Queries whose keys are all masked give zero."""
    mask = torch.rand(shape) < 0.4
    mask[..., 60:] = False
    mask[-1, :, 3 % shape[2]] = False
    check((2, 33, 70, 4, 2, 32, 48), AttentionCall(mask, causal=causal))
    if not causal:
        bias = torch.randn(1, *shape[1:]) if shape[1] > 1 else torch.randn(shape)
        check((2, 33, 70, 4, 2, 32, 48), AttentionCall(torch.rand(2, 1, 1, 70) < 0.7, bias))


def test_blocks_that_no_query_sees_are_skipped():
    distance = torch.arange(300)[:, None] - torch.arange(300)  # a window of 20 keys, far from most others
    check((1, 300, 300, 2, 1, 32, 32), AttentionCall(((distance >= 0) & (distance < 20))[None, None]))


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("width", [32, 12])
@pytest.mark.parametrize("rows", [1, 2])
def test_queries_and_keys_are_rotary(is_interleaved, width, rows):
    angle = torch.randn(rows, 70, width // 2)
    options = {"cos": angle.cos(), "sin": angle.sin(), "is_interleaved": is_interleaved}
    check((2, 70, 70, 4, 2, 32, 48), AttentionCall(causal=True, **options))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", SIZES[1:], ids=str)
def test_bf16_is_as_exact_as_torch(size, causal):
    causal = causal and size[1] == size[2]  # torch aligns the triangle of other lengths in another way
    qkv = draw_qkv(size, torch.bfloat16)
    grad = torch.randn(*qkv[0].shape[:3], size[-1]).bfloat16()
    groups = size[3] // size[4]
    heads = [x.transpose(1, 2).repeat_interleave(n, 1) for x, n in zip(qkv, (1, groups, groups), strict=True)]
    # values as wide as keys, so that torch takes its fused kernel
    heads[2] = F.pad(heads[2], (0, max(0, size[5] - size[6])))
    torch_output = F.scaled_dot_product_attention(*heads, is_causal=causal).transpose(1, 2)[..., : size[6]]
    torch_results = output_and_gradients(torch_output, qkv, grad)
    actual = output_and_gradients(AttentionFunction.apply(*qkv, AttentionCall(causal=causal)), qkv, grad)
    references = output_and_gradients(reference_attention(*qkv, AttentionCall(causal=causal)), qkv, grad)
    for a, b, reference in zip(actual, torch_results, references, strict=True):
        error, torch_error = ((x.double() - reference).norm() / reference.norm() for x in (a, b))
        # torch's plain products round only their results: 2e-3 is that of bf16 weights
        assert error <= max(1.2 * torch_error, 4e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_the_batch(dtype):
    qkv, grad = draw_qkv((3, 40, 40, 2, 1, 32, 32), dtype), torch.randn(3, 40, 2, 32).to(dtype)
    mask = torch.arange(40) < torch.tensor([40, 25, 31])[:, None, None, None]

    def attend(rows, length, mask):
        inputs = [x.detach()[rows, :length].requires_grad_() for x in qkv]
        output = AttentionFunction.apply(*inputs, AttentionCall(mask, causal=True))
        return output_and_gradients(output, tuple(inputs), grad[rows, :length])

    batch = attend(slice(3), 40, mask)
    # queries in the padding see the same keys and have no gradient
    assert torch.equal(attend(slice(1, 2), 25, None)[0], batch[0][1:2, :25])
    for result, expected in zip(attend(slice(1, 2), 40, mask[1:2]), batch, strict=True):
        assert torch.equal(result, expected[1:2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_propagates(dtype):
    q, k, v = draw_qkv((1, 40, 40, 2, 2, 32, 32), dtype)
    with torch.no_grad():
        k[0, 30, 0, 5] = torch.nan
    output = AttentionFunction.apply(q, k, v, AttentionCall(causal=True))
    out, dq, dk, dv = output_and_gradients(output, (q, k, v), torch.ones(1, 40, 2, 32))
    assert out[0, 30:, 0].isnan().all()
    assert not out[0, :30].isnan().any() and not out[0, :, 1].isnan().any()
    assert dq[0, 30:, 0].isnan().any() and dk.isnan().any() and dv.isnan().any()


def test_supported_head_dims():
    x, odd = torch.zeros(1, 3, 2, 32), torch.zeros(1, 3, 2, 24)
    assert can_attend(x, x, x)
    for qkv in ((odd, odd, x), (x, x, odd), (x, x.double(), x), (x.double(),) * 3):
        assert not can_attend(*qkv)
