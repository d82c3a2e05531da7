"""Tests of nn/similarity.py."""

from __future__ import annotations

import pytest
import torch
from tests.nn.linear_helpers import equal, layer

from polyhead.core.registry import FEATURE_MAP, SIMILARITY
from polyhead.nn.attention.kernel import KernelAttention
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.base import Position
from polyhead.nn.position.rope import Rope

C, H, D = 12, 6, 4


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [name for name in SIMILARITY.names() if name in FEATURE_MAP.names()])
def test_the_kernel_written_out_equals_the_linear_form(name, causal, n_kv_heads):
    """sum_j sim(q, k_j) v_j / sum_j sim(q, k_j), eq. 3, with the same parameters."""
    linear = layer(n_kv_heads=n_kv_heads, causal=causal, feature_map=name, chunk=3)
    kernel = layer(KernelAttention, n_kv_heads=n_kv_heads, causal=causal, sim=name)
    x, source = (torch.randn(4, n, C, dtype=torch.double) for n in (7, 5))
    pos = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, -1, -1, -1, -1]] * 2)
    seen = pos >= 0
    equal(kernel(x, pos)[seen], linear(x, pos)[seen])
    equal(kernel(x), linear(x))
    if not causal:
        equal(*(a(x, memory=a.project_kv(source[:2], pos[:2, :5])) for a in (kernel, linear)))


@pytest.mark.parametrize("position", [Position, Rope])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_of_exp_is_softmax(causal, n_kv_heads, position):
    kernel, soft = (
        layer(kind, n_kv_heads, causal, position, **options)
        for kind, options in ((KernelAttention, {"sim": "exp", "eps": 1e-15}), (Attention, {}))
    )
    x, source = (torch.randn(4, n, C, dtype=torch.double) for n in (7, 5))
    pos = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, -1, -1, -1, -1]] * 2)
    watched = {a: [] for a in (kernel, soft)}
    for a in (kernel, soft):
        a.weights_hooks.append(watched[a].append)
    equal(kernel(x, pos), soft(x, pos))
    if not causal:
        equal(*(a(x, memory=a.project_kv(source[:2], pos[:2, :5])) for a in (kernel, soft)))
    for got, wanted in zip(watched[kernel], watched[soft], strict=True):
        equal(got, wanted)
