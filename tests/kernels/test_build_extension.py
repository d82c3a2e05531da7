"""The kernels against the formulas in double precision, and what happens where they cannot be had."""

from __future__ import annotations

import copy
import subprocess

import pytest
import torch
from tests.kernels.build_extension_helpers import CONFIGS, PRECISIONS

from polyhead.cache.paged_view import PagedView
from polyhead.core.choice import Choice
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.greedy import greedy_search
from polyhead.kernels import build_extension
from polyhead.kernels.attention import PackedAttention, paged_attention
from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.linear import NativeLinear, PackedLinear
from polyhead.kernels.pack_model import can_pack, pack_model
from polyhead.models import build

compiled = pytest.mark.skipif(load_kernels() is None, reason="no kernel can be compiled here")


@compiled
@PRECISIONS
def test_a_row_is_the_same_to_the_last_bit_whatever_stands_beside_it(dtype, near):
    x, layer = torch.randn(41, 900, dtype=dtype), NativeLinear(torch.randn(70, 900, dtype=dtype), None)
    for rows in (slice(0, 1), slice(3, 5), slice(0, 6), slice(2, 13), slice(4, 21), slice(7, 40)):
        assert torch.equal(layer(x[rows]), layer(x)[rows])
    q, k, v = (
        torch.randn(4, 2, 1, 32, dtype=dtype),
        torch.randn(4, 2, 40, 32, dtype=dtype),
        torch.randn(4, 2, 40, 16, dtype=dtype),
    )
    mask = torch.rand(4, 1, 1, 40) < 0.5
    mask[1, ..., 21:] = False
    together = paged_attention(q, PagedView(k, v, torch.arange(4)[:, None], lambda x: x), mask)
    alone = paged_attention(
        q[1:2], PagedView(k[:, :, :21], v[:, :, :21], torch.tensor([[1]]), lambda x: x), mask[1:2, ..., :21]
    )
    assert torch.equal(together[1:2], alone)


@compiled
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("cache", ["static", "growing", "paged", "quantized", "window", "h2o"])
def test_a_packed_model_says_what_the_plain_one_says_with_every_cache(name, cache):
    plain = build(CONFIGS[name], seed=1).eval()
    fast = pack_model(copy.deepcopy(plain))
    assert sum(isinstance(part, PackedAttention) for part in fast.modules()) == (
        6 if name == "grouped" else 2
    )
    source = torch.randint(5, 97, (3, 11), generator=torch.Generator().manual_seed(2))
    pos = torch.arange(11).repeat(3, 1)
    pos[1, 4:] = -1
    rules = {
        "bos_id": 1,
        "eos_id": 2,
        "max_new_tokens": [12] * 3,
        "min_new_tokens": 12,
        "cache": Choice(cache),
    }
    a, b = (greedy_search(model, source, pos, **rules) for model in (plain, fast))
    assert [x.tokens for x in a] == [x.tokens for x in b]
    assert [x.log_prob for x in a] == pytest.approx([x.log_prob for x in b], abs=1e-4)
    a, b = (beam_search(model, source, pos, beam_size=3, **rules) for model in (plain, fast))
    assert [[x.tokens for x in best] for best in a] == [[x.tokens for x in best] for best in b]


@pytest.fixture
def nothing_known():
    load_kernels.cache_clear()
    yield
    load_kernels.cache_clear()


@pytest.mark.parametrize(
    "reason",
    [
        "no compiler",
        "a compiler that refuses",
        "a library that does not load",
        "a home nobody may write",
        "no home",
    ],
)
def test_without_kernels_the_products_are_those_of_torch(nothing_known, monkeypatch, tmp_path, reason):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if reason == "no compiler":
        monkeypatch.setattr(build_extension.shutil, "which", lambda name: None)
    elif reason == "a compiler that refuses":
        monkeypatch.setattr(build_extension, "COMPILER_FLAGS", ["--no-such-flag"])
    elif reason == "a library that does not load":
        monkeypatch.setattr(
            build_extension.subprocess, "run", lambda command, **_: command[-2].write_text("no library")
        )
    elif reason == "no home":

        def homeless():
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(build_extension.Path, "home", homeless)
    else:
        (tmp_path / "cache").write_text("a file")
    assert load_kernels() is None
    if can_pack():
        model = pack_model(build(CONFIGS["grouped"], seed=1).eval())
        assert any(isinstance(part, PackedLinear) for part in model.modules())
        assert not any(isinstance(part, NativeLinear | PackedAttention) for part in model.modules())


@compiled
def test_what_was_compiled_is_found_again(nothing_known, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_kernels() is not None
    made = list((tmp_path / "polyhead").iterdir())
    assert [path.suffix for path in made] == [".so"]
    load_kernels.cache_clear()

    def refuse(*given, **options):
        raise subprocess.SubprocessError

    monkeypatch.setattr(build_extension.subprocess, "run", refuse)
    assert load_kernels() is not None
    assert list((tmp_path / "polyhead").iterdir()) == made
