import pytest
import torch
from tests.nn.linear_helpers import assert_close, draw, make_attention

from polyhead.core.registry import FEATURE_MAP, SIMILARITY
from polyhead.nn.attention.kernel import KernelAttention
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.base import Position
from polyhead.nn.position.rope import Rope

POS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, -1, -1, -1, -1]] * 2)


def assert_memory_close(a, b, x):
    source = draw(2, 5)
    assert_close(*(one(x, memory=one.project_kv(source, POS[:2, :5])) for one in (a, b)))


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [name for name in SIMILARITY.names() if name in FEATURE_MAP.names()])
def test_kernel_attention_equals_linear_attention(name, causal, n_kv_heads):
    """sum_j sim(q, k_j) v_j / sum_j sim(q, k_j), eq. 3, with the same parameters."""
    linear = make_attention(n_kv_heads=n_kv_heads, causal=causal, feature_map=name, chunk=3)
    kernel = make_attention(KernelAttention, n_kv_heads=n_kv_heads, causal=causal, sim=name)
    x = draw(4, 7)
    assert_close(kernel(x, POS)[POS >= 0], linear(x, POS)[POS >= 0])
    assert_close(kernel(x), linear(x))
    if not causal:
        assert_memory_close(kernel, linear, x)


@pytest.mark.parametrize("position", [Position, Rope])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_exp_kernel_equals_softmax(causal, n_kv_heads, position):
    kernel = make_attention(KernelAttention, n_kv_heads, causal, position, sim="exp", eps=1e-15)
    softmax, x, weights = make_attention(Attention, n_kv_heads, causal, position), draw(4, 7), []
    for a in (kernel, softmax):
        a.weights_hooks.append(weights.append)
    assert_close(kernel(x, POS), softmax(x, POS))
    assert_close(*weights)
    if not causal:
        assert_memory_close(kernel, softmax, x)
