from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from polyhead.kernels import cpu_features
from polyhead.kernels.onednn_matmul import mkl_without_avx512
from polyhead.kernels.training.mode import training_kernels
from polyhead.train.precision import autocast

Product = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def avx512_of_amd(monkeypatch):
    cpu = {"vendor_id": "AuthenticAMD", "flags": "avx512f"}
    monkeypatch.setattr(cpu_features, "cpu_info", lambda: cpu)
    mkl_without_avx512.cache_clear()
    yield
    mkl_without_avx512.cache_clear()


class Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[str(func)] += 1
        if func is torch.ops.mkldnn._linear_pointwise.default:  # other layouts are slow
            assert all(side.is_contiguous() or side.T.is_contiguous() for side in args[:2])
        return func(*args, **(kwargs or {}))

    @property
    def num_onednn(self):
        return self.counts["mkldnn._linear_pointwise.default"]


PRODUCTS = {
    "linear": (F.linear, (256, 64), (96, 64)),
    "linear of three axes": (F.linear, (4, 64, 64), (96, 64)),
    "matrices": (lambda a, b: a @ b, (256, 64), (64, 96)),
    "matmul": (torch.matmul, (256, 64), (64, 96)),
    "left side transposed": (lambda a, b: a.T @ b, (64, 256), (64, 96)),
    "both transposed": (lambda a, b: a.T @ b.T, (64, 256), (96, 64)),
    "every second row": (lambda a, b: a[::2] @ b, (512, 64), (64, 96)),
    "slice of columns": (lambda a, b: F.linear(a[:, 8:72], b), (256, 80), (96, 64)),
    "slice of outputs": (lambda a, b: a @ b[:, :96], (256, 64), (64, 128)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_their_gradients_are_those_of_torch(name):
    product, first, second = PRODUCTS[name]
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(shape, generator=generator, requires_grad=True) for shape in (first, second))
    exact = product(a.double(), b.double())
    weights = torch.randn(exact.shape, generator=generator)
    expected = torch.autograd.grad((exact * weights.double()).sum(), (a, b))
    with Calls() as calls:
        with training_kernels():
            out = product(a, b)
        actual = torch.autograd.grad((out * weights).sum(), (a, b))
    assert calls.num_onednn == 3
    torch.testing.assert_close(out, exact.float(), rtol=1e-5, atol=1e-4)
    for a_grad, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(a_grad, other, rtol=1e-5, atol=1e-4)


def test_bias_gradients_and_second_derivatives():
    (x, weight), close = (torch.randn(512, 64), torch.randn(128, 64)), {"rtol": 1e-5, "atol": 1e-4}
    bias = torch.randn(128, requires_grad=True)
    with Calls() as calls, training_kernels():
        out = F.linear(x, weight, bias)
        out.sum().backward()  # the gradient is an expanded 1
    assert calls.num_onednn == 1
    torch.testing.assert_close(out, torch.addmm(bias, x, weight.T), **close)
    assert torch.equal(bias.grad, torch.full((128,), 512.0))
    with training_kernels():
        F.linear(x.requires_grad_(), weight.requires_grad_()).sum().backward()
    torch.testing.assert_close(x.grad, weight.detach().sum(0).expand(512, 64), **close)
    torch.testing.assert_close(weight.grad, x.detach().sum(0).expand(128, 64), **close)
    x, weight = torch.randn(512, 64), torch.randn(128, 64)

    def second(mode):
        a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
        with mode:
            slope = torch.autograd.grad(F.linear(a, b).square().sum(), (a, b), create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in slope), (a, b))  # type: ignore[arg-type]

    for a_grad, other in zip(second(training_kernels()), second(nullcontext()), strict=True):
        assert (a_grad - other).norm() < 1e-5 * other.norm()


def test_other_products_use_torch():
    a, b = torch.randn(512, 64), torch.randn(64, 128)
    pairs = [(a.double(), b.double()), (a.bfloat16(), b.bfloat16()), (a.to("meta"), b.to("meta"))]
    pairs += [(torch.randn(4, 128, 64), torch.randn(4, 64, 128)), (torch.randn(2**20), torch.randn(2**20))]
    for x, y in [*pairs, (torch.randn(16, 16), torch.randn(16, 16))]:
        with Calls() as calls, training_kernels():
            x @ y
        assert calls.num_onednn == 0, x.shape


def test_other_call_forms_use_torch():
    (a, b), out = torch.randn(2, 1024, 1024).unbind(), torch.zeros(1024, 1024)
    with Calls() as calls, training_kernels():
        torch.matmul(a, b, out=out)
        keyword_outputs = torch.matmul(a, other=b), F.linear(input=a, weight=b.T)
        vector_outputs = F.linear(a[0], b.T), F.linear(a, b[:, 0])
    with calls, torch.autocast("cpu", torch.bfloat16), training_kernels():
        assert F.linear(a, b).dtype is torch.bfloat16
    assert calls.num_onednn == 0
    for one in (out, *keyword_outputs):
        torch.testing.assert_close(one, a @ b)
    for one, expected in zip(vector_outputs, ((a @ b)[0], (a @ b)[:, 0]), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4)


AVX512 = "fma avx2 avx512f avx512_bf16"
CPUS = [("AuthenticAMD", AVX512, True), ("AuthenticAMD", "fma avx2", False), ("GenuineIntel", AVX512, False)]


@pytest.mark.parametrize(("vendor", "flags", "expected"), CPUS)
def test_processors_with_onednn_products(vendor, flags, expected, monkeypatch):
    monkeypatch.setattr(cpu_features, "cpu_info", lambda: {"vendor_id": vendor, "flags": flags})
    mkl_without_avx512.cache_clear()
    assert mkl_without_avx512() is expected
    x, weight = torch.randn(512, 64), torch.randn(128, 64)
    for mode in (training_kernels(), autocast("fp32", torch.device("cpu"))):
        with Calls() as calls, mode:
            F.linear(x, weight)
        assert calls.num_onednn == expected
    with Calls() as calls, autocast("fp32", torch.device("cuda")):
        F.linear(x, weight)
    assert calls.num_onednn == 0
