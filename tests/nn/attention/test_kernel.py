"""Tests of nn/attention/kernel.py."""

from __future__ import annotations

import sys

import pytest
import torch
from tests.nn.linear_helpers import equal, fed, layer

from polyhead.cache.static import StaticCache
from polyhead.core.errors import UserError
from polyhead.nn.attention.kernel import KernelAttention
from polyhead.nn.attention.linear import LinearAttention
from polyhead.nn.cache import CacheShape

C, H, D = 12, 6, 4


@pytest.mark.parametrize("kind", [LinearAttention, KernelAttention])
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_that_sees_nothing_gives_zero_and_no_gradient(kind, causal):
    a = layer(kind, causal=causal, bias=False)
    x = torch.randn(2, 5, C, dtype=torch.double, requires_grad=True)
    pos = torch.tensor([[0, 1, 2, 3, 4], [-1] * 5])
    out = a(x, pos)
    assert (out[1] == 0).all()
    out.sum().backward()
    assert (x.grad[1] == 0).all()
    assert all(p.grad.isfinite().all() for p in a.parameters())
    memory = a.project_kv(x.detach(), pos)
    assert (a(x, memory=memory)[1] == 0).all()


def test_the_kernel_keeps_keys_and_values_in_any_cache():
    a, x = layer(KernelAttention, causal=True, sim="square"), torch.randn(2, 5, C, dtype=torch.double)
    assert a.state is None
    cache = StaticCache(CacheShape(1, 2, D, D, torch.double, torch.device("cpu")), 2, 9)
    equal(fed(a, x, [2, 1, 2], cache), a(x))
    kv = a.project_kv(x, None).replace(log_count=torch.tensor([1.0, 2, 1, 1, 3]).log().expand(2, 2, 5))
    twice = a.project_kv(x[:, [0, 1, 1, 2, 3, 4, 4, 4]], None)
    equal(
        layer(KernelAttention, sim="square")(x, memory=kv),
        layer(KernelAttention, sim="square")(x, memory=twice),
    )


MINE = """
import torch
def double(x): return torch.cat([x.exp(), (-x).exp()], -1)
def same(q, k): return double(q) @ double(k).mT
def number(x): return 3
def short(x): return x.sum(-1)
def broken(x): return x @ x
"""


def test_a_feature_map_or_similarity_of_ones_own_is_a_name_away(tmp_path, monkeypatch):
    (tmp_path / "mine_of_linear.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_of_linear", raising=False)
    x = torch.randn(2, 5, C, dtype=torch.double)
    a = layer(causal=True, feature_map="mine_of_linear:double", chunk=2)
    assert a.state == ((2, 2 * D, D + 1),)
    equal(a(x), layer(KernelAttention, causal=True, sim="mine_of_linear:same")(x))
    for name, message in (
        ("number", "maps a tensor .* to a int"),
        ("short", r"maps a tensor .* to shape \(1, 2, 3\)"),
        ("broken", "fails on"),
    ):
        with pytest.raises(UserError, match=f"feature_map 'mine_of_linear:{name}' {message}"):
            layer(feature_map=f"mine_of_linear:{name}")
