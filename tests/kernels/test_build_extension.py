"""The kernels against the formulas in double precision, and what happens where they cannot be had."""

from __future__ import annotations

import copy
import subprocess

import pytest
import torch

from polyhead.cache.paged_view import PagedView
from polyhead.core.choice import Choice
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.greedy import greedy_search
from polyhead.kernels import build_extension
from polyhead.kernels.attention import PackedAttention, paged_attention
from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.linear import PANEL, NativeLinear, PackedLinear
from polyhead.kernels.logsumexp import max_and_logsumexp
from polyhead.kernels.pack_model import can_pack, pack_model
from polyhead.models import build, preset_config

compiled = pytest.mark.skipif(load_kernels() is None, reason="no kernel can be compiled here")
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"]
)


def close(found, wanted, near, terms=None):
    """Equal within rounding, which grows with the terms of a sum: those of a sum near zero are not."""
    size = wanted if terms is None else terms
    torch.testing.assert_close(found.double(), wanted, rtol=near, atol=near * float(size.abs().max()))


@compiled
@PRECISIONS
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 8, 1), (5, 24, 63), (6, 40, 64), (7, 16, 65), (13, 700, 130), (40, 1030, 200), (400, 20, 70)],
)
def test_a_product_is_the_sum_of_products(dtype, near, rows, inputs, outputs):
    x, weight, bias = (
        torch.randn(rows, inputs, dtype=dtype),
        torch.randn(outputs, inputs, dtype=dtype),
        torch.randn(outputs, dtype=dtype),
    )
    terms = x.double()[:, None] * weight.double()
    wanted, size = terms.sum(-1), terms.abs().sum(-1)
    close(NativeLinear(weight, None)(x), wanted, near, size)
    close(NativeLinear(weight, bias)(x), wanted + bias.double(), near, size)
    several = NativeLinear(weight, bias)(x.expand(2, 3, -1, -1))
    assert several.shape == (2, 3, rows, outputs)
    close(several[1, 2], wanted + bias.double(), near, size)


@compiled
@PRECISIONS
def test_a_part_of_a_product_is_that_of_its_rows(dtype, near):
    x, weight, bias = (
        torch.randn(3, 10, dtype=dtype),
        torch.randn(3 * PANEL + 5, 10, dtype=dtype),
        torch.randn(3 * PANEL + 5, dtype=dtype),
    )
    layer, wanted = NativeLinear(weight, bias), x.double() @ weight.double().T + bias.double()
    for first, end in ((0, PANEL), (PANEL, 2 * PANEL), (PANEL, 3 * PANEL + 5), (2 * PANEL, 3 * PANEL + 1)):
        close(layer.forward_slice(x, first, end), wanted[:, first:end], near)


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
def test_bf16_results_are_rounded_to_the_nearest_as_torch_does():
    x = torch.randn(3, 2, dtype=torch.bfloat16)
    pairs = torch.cat(
        [
            torch.randn(200, 2) * 2.0 ** torch.randint(-8, 8, (200, 1)),
            torch.tensor([[1, 2**-8], [1, 3 * 2**-8], [-1, -(2**-8)]]),
        ]
    )
    weight = pairs.bfloat16()
    exact = x.float()[:, None] * weight.float()
    wanted = (exact[..., 0] + exact[..., 1]).bfloat16()
    found = NativeLinear(weight, None)(x)
    assert (found == wanted).float().mean() > 0.99  # the sum itself may be off by a rounding of fp32
    ones = torch.ones(1, 2, dtype=torch.bfloat16)
    assert torch.equal(NativeLinear(weight, None)(ones)[0], weight.float().sum(1).bfloat16())


@compiled
def test_numbers_that_are_not_finite_stay_so():
    weight = torch.eye(4)
    x = torch.tensor([[torch.nan, 1, torch.inf, 2]])
    assert NativeLinear(weight, None)(x).isnan().all()  # 0 times infinity too, as in any product
    half = NativeLinear(torch.eye(2).bfloat16(), None)(torch.tensor([[torch.nan, 1]]).bfloat16())
    assert half.isnan().all()


def attention(q, k, v, mask, scale):
    """Written out, one query at a time: (N, H, T, D) over (B, K, S, D) -> (N, T, H * Dv)."""
    N, H, T, _ = q.shape
    n, group = N // len(k), H // k.size(1)
    out = torch.zeros(N, T, H, v.size(3), dtype=torch.float64)
    for i in range(N):
        for h in range(H):
            for t in range(T):
                row, head = i // n, h // group
                seen = torch.ones(k.size(2), dtype=torch.bool)
                if mask is not None:
                    seen = mask.expand(len(k), k.size(1), T, -1)[row, head, t]
                if seen.any():
                    scores = (k[row, head, seen].double() @ q[i, h, t].double()) * scale
                    out[i, t, h] = scores.softmax(0) @ v[row, head, seen].double()
    return out.flatten(2)


@compiled
@PRECISIONS
@pytest.mark.parametrize("masked", [None, (1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, 4), (3, 2, 4)])
@pytest.mark.parametrize(("share", "queries"), [(1, 1), (1, 2), (5, 1), (1, 4), (2, 4)])
def test_queries_read_pages_where_they_lie(dtype, near, masked, share, queries):
    B, K, group, block, n, D, Dv = 3, 2, 3, 4, 5, 32, 16
    torch.manual_seed(1)
    k, v = (torch.randn(B, K, n * block, width, dtype=dtype) for width in (D, Dv))
    q = 3 * torch.randn(B * share, queries, K * group, D, dtype=dtype).transpose(1, 2)
    mask = None
    if masked is not None:
        mask = torch.rand(masked[0], masked[1], min(masked[2], queries), n * block) < 0.5
        mask[0, 0, 0] = False
    table = torch.randperm(B * n).view(B, n)
    scattered = []
    for x in (k, v):
        pages = torch.empty(B * n, K, block, x.size(3), dtype=dtype)
        for row in range(B):
            for i in range(n):
                pages[table[row, i]] = x[row, :, i * block : (i + 1) * block]
        scattered.append(pages)
    wanted = attention(q, k, v, mask, 0.2)
    close(paged_attention(q, PagedView(*scattered, table, lambda x: x), mask, 0.2), wanted, near)
    whole = PagedView(
        k.transpose(1, 2).contiguous().transpose(1, 2), v, torch.arange(B)[:, None], lambda x: x
    )
    close(paged_attention(q.contiguous(), whole, mask, 0.2), wanted, near)


@compiled
@PRECISIONS
@pytest.mark.parametrize(("slots", "queries"), [(1, 8), (63, 9), (64, 12), (150, 20)])
def test_many_queries_over_slots_that_fill_several_panels(dtype, near, slots, queries):
    q = 2 * torch.randn(2, queries, 2, 48, dtype=dtype).transpose(1, 2)
    k, v = torch.randn(2, 2, slots, 48, dtype=dtype), torch.randn(2, 2, slots, 80, dtype=dtype)
    mask = torch.rand(2, 1, queries, slots) < 0.7
    close(
        paged_attention(q, PagedView(k, v, torch.arange(2)[:, None], lambda x: x), mask),
        attention(q, k, v, mask, 48**-0.5),
        near,
    )


@compiled
def test_weights_far_apart_do_not_overflow():
    k = torch.tensor([[-1e4], [-90.0], [-86.0], [-20.0], [0.0], [80.0], [1e4]]).expand(7, 16)[None, None] / 16
    v, q = torch.randn(1, 1, 7, 16), torch.ones(1, 1, 1, 16)
    table = torch.zeros(1, 1, dtype=torch.int64)
    for last in range(1, 8):
        close(
            paged_attention(q, PagedView(k[:, :, :last], v[:, :, :last], table, lambda x: x), None, 1.0),
            attention(q, k[:, :, :last], v[:, :, :last], None, 1.0),
            1e-5,
        )


@pytest.mark.parametrize("width", [1, 15, 16, 17, 1000])
@pytest.mark.parametrize("way", ["kernel", "torch"])
def test_logarithms_of_sums_are_those_of_log_softmax(width, way, monkeypatch):
    if way == "torch":
        monkeypatch.setattr("polyhead.kernels.logsumexp.load_kernels", lambda: None)
    x = 30 * torch.randn(5, width) + torch.tensor([[0], [200], [-200], [1e4], [0]])
    x[4, width // 2 :] = -torch.inf  # where width is 1, the whole row
    most, log_sum = max_and_logsumexp(x)
    wanted = x.double().logsumexp(-1, keepdim=True) - x.double().amax(-1, keepdim=True)
    assert torch.equal(most, x.amax(-1, keepdim=True))
    torch.testing.assert_close(log_sum[:4].double(), wanted[:4], rtol=1e-6, atol=1e-6)
    assert width == 1 or torch.isclose(log_sum[4].double(), wanted[4], rtol=1e-6, atol=1e-6)
    x[1, -1] = torch.nan
    assert max_and_logsumexp(x)[1][1].isnan()


CONFIGS = {
    "grouped": preset_config("tiny", 97, n_layers=2, d_model=128, n_heads=4, n_kv_heads=2, max_len=48),
    "rope": preset_config("gpt2", 97, n_layers=2, d_model=128, n_heads=4, position="rope", attention={"name": "softmax", "qk_norm": True, "window": 5}),
    "learned": preset_config("gpt2", 97, n_layers=2, d_model=128, n_heads=2, attention={"name": "softmax", "bias": False, "scale": 0.3}),
}  # fmt: skip


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


@compiled
def test_long_texts_are_left_to_torch_and_say_the_same(monkeypatch):
    fast = pack_model(build(CONFIGS["grouped"], seed=1).eval())
    source = torch.randint(5, 97, (2, 40))
    near = fast.encode(source)
    monkeypatch.setattr("polyhead.kernels.attention.MAX_SCORES", 40)
    monkeypatch.setattr(
        "polyhead.kernels.attention.paged_attention", lambda *_: pytest.fail("these are too many scores")
    )
    for one, other in zip(near, fast.encode(source), strict=True):
        torch.testing.assert_close(one.k, other.k, rtol=0, atol=1e-5)


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
