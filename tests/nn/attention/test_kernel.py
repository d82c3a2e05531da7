import sys

import pytest
import torch
from tests.nn.linear_helpers import D, assert_close, decode_in_steps, draw, make_attention

from polyhead.cache.contiguous import StaticCache
from polyhead.core.errors import UserError
from polyhead.nn.attention.kernel import KernelAttention
from polyhead.nn.cache import CacheShape


def test_kernel_attention_reads_key_value_caches():
    a, x = make_attention(KernelAttention, causal=True, sim="square"), draw(2, 5)
    assert a.state is None
    cache = StaticCache(CacheShape(1, 2, D, D, torch.double, torch.device("cpu")), 2, 9)
    assert_close(decode_in_steps(a, x, [2, 1, 2], cache), a(x))
    counted = a.project_kv(x, None).replace(log_count=torch.tensor([1.0, 2, 1, 1, 3]).log().expand(2, 2, 5))
    repeated = a.project_kv(x[:, [0, 1, 1, 2, 3, 4, 4, 4]], None)
    b = make_attention(KernelAttention, sim="square")
    assert_close(b(x, memory=counted), b(x, memory=repeated))


PLUGIN = """
import torch
def double(x): return torch.cat([x.exp(), (-x).exp()], -1)
def same(q, k): return double(q) @ double(k).mT
def number(x): return 3
def short(x): return x.sum(-1)
def broken(x): return x @ x
"""


def test_custom_feature_maps_and_similarities_are_loaded(tmp_path, monkeypatch):
    (tmp_path / "linear_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "linear_plugin", raising=False)
    x = draw(2, 5)
    a = make_attention(causal=True, feature_map="linear_plugin:double", chunk=2)
    assert a.state == ((2, 2 * D, D + 1),)
    assert_close(a(x), make_attention(KernelAttention, causal=True, sim="linear_plugin:same")(x))
    messages = {"number": "maps a tensor .* to a int", "short": r"maps a tensor .* to shape \(1, 2, 3\)"}
    for name, message in (messages | {"broken": "fails on"}).items():
        with pytest.raises(UserError, match=f"feature_map 'linear_plugin:{name}' {message}"):
            make_attention(feature_map=f"linear_plugin:{name}")
