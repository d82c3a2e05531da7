"""attend() against loops in double precision, written from the equation."""

import itertools
import math

import pytest
import torch

import polyhead.nn.kv as kv_module
from polyhead.nn.kv import KV, Window, attend, attention_mask, visible


def reference(q, kv, mask=None, bias=None, causal=False, scale=None):
    """softmax(q k^T scale + bias) v, a query and a slot at a time: (outputs, weights) in float64."""
    (N, H, T, D), (B, K, S, _) = q.shape, kv.k.shape
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask is None else mask
    mask = mask.repeat_interleave(N // B, 0) if mask.size(0) == B else mask
    seen = mask.expand(N, mask.size(1), T, S).tolist()
    added = (torch.zeros(1, 1, 1, 1) if bias is None else bias).double().expand(N, H, T, S).tolist()
    counts = (torch.zeros(B, K, S) if kv.log_count is None else kv.log_count).double().tolist()
    qs, ks, vs = (x.double().tolist() for x in (q, kv.k, kv.v))
    out, weights = torch.zeros(N, H, T, kv.v.size(3)).double(), torch.zeros(N, H, T, S).double()
    for i, h, t in itertools.product(range(N), range(H), range(T)):
        row, head = i // (N // B), h // (H // K)
        shown = seen[i][head if len(seen[i]) > 1 else 0][t]
        terms = []
        for s in range(S):
            score = sum(a * b for a, b in zip(qs[i][h][t], ks[row][head][s], strict=True))
            score = score * (D**-0.5 if scale is None else scale) + added[i][h][t][s] + counts[row][head][s]
            terms.append(math.exp(score) if shown[s] and (not causal or s <= t) else 0.0)
        total = sum(terms) or 1.0
        weights[i, h, t] = torch.tensor([term / total for term in terms])
        mixed = [
            sum(w / total * v[e] for w, v in zip(terms, vs[row][head], strict=True))
            for e in range(kv.v.size(3))
        ]
        out[i, h, t] = torch.tensor(mixed)
    return out, weights


def drawn(heads=4, kv_heads=2, rows=2, beams=1, queries=3, slots=5, width=4, v_width=4, dtype=torch.float32):
    torch.manual_seed(0)
    q = torch.randn(rows * beams, heads, queries, width).to(dtype)
    return q, KV(
        torch.randn(rows, kv_heads, slots, width).to(dtype),
        torch.randn(rows, kv_heads, slots, v_width).to(dtype),
    )


@pytest.fixture(params=["fused", "by hand"])
def path(request, monkeypatch):
    """Both ways to the same numbers."""
    monkeypatch.setattr(kv_module, "_prefer_math_attention", lambda q, kv: request.param == "by hand")
    return request.param


def check(q, kv, *args, atol=2e-6, **options):
    """Outputs and watched weights equal the reference, gradients exist and are finite."""
    out, weights = reference(q, kv, *args, **options)
    torch.testing.assert_close(attend(q, kv, *args, **options).double(), out, rtol=0, atol=atol)
    watched = []
    again = attend(q, kv, *args, **options, hooks=[watched.append])
    torch.testing.assert_close(again.double(), out, rtol=0, atol=atol)
    torch.testing.assert_close(watched[0].double(), weights, rtol=0, atol=atol)
    sums = watched[0].sum(-1)
    assert (((sums - 1).abs() < 1e-5) | (sums == 0)).all() if q.dtype == torch.float32 else True


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 4, 6, 12])
def test_grouped_heads_read_the_key_head_of_their_group(path, kv_heads):
    """Every number of key heads that divides 12, in the order of published checkpoints."""
    q, kv = drawn(heads=12, kv_heads=kv_heads)
    check(q, kv)
    repeated = KV(*(x.repeat_interleave(12 // kv_heads, 1) for x in (kv.k, kv.v)))
    torch.testing.assert_close(attend(q, kv), attend(q, repeated), rtol=0, atol=1e-6)
    wrong = KV(*(x.repeat(1, 12 // kv_heads, 1, 1) for x in (kv.k, kv.v)))
    assert kv_heads in (1, 12) or (attend(q, kv) - attend(q, wrong)).abs().max() > 0.1


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_masks_biases_and_counts_of_every_shape(path, rows, beams, kv_heads):
    q, kv = drawn(rows=rows, beams=beams, kv_heads=kv_heads)
    N = rows * beams
    masks = [None] + [torch.rand(n, k, t, 5) < 0.6 for n in {1, N} for k in {1, kv_heads} for t in (1, 3)]
    masks += [torch.rand(rows, 1, 1, 5) < 0.6]
    biases = [None] + [torch.randn(n, h, 3, 5) for n in {1, N} for h in (1, 4)]
    counted = kv.replace(log_count=torch.randn(rows, kv_heads, 5))
    for i, mask in enumerate(masks):
        for bias in (None, biases[i % len(biases)], biases[-1 - i % 3]):
            check(q, counted if i % 2 else kv, mask, bias)
    check(q, kv, biases[0], biases[1], scale=0.1)


@pytest.mark.parametrize("beams", [1, 2])
def test_the_triangle_and_a_scale(path, beams):
    q, kv = drawn(queries=5, beams=beams)
    check(q, kv, causal=True)
    check(q, kv, causal=True, scale=1.0)
    check(q, kv, scale=0.0)


def test_values_may_be_wider_or_narrower_than_keys(path):
    for width in (1, 7):
        q, kv = drawn(v_width=width)
        check(q, kv)
        check(q, kv, torch.rand(2, 1, 3, 5) < 0.5)


@pytest.mark.acceptance("A1", "A2")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_query_that_sees_nothing_gives_zero_and_finite_gradients(path, dtype):
    q, kv = drawn(dtype=dtype)
    mask = torch.rand(2, 1, 3, 5) < 0.6
    mask[0, 0, 1], mask[1] = False, False
    mask[0, 0, 0, 0] = True
    bias = torch.randn(1, 4, 3, 5, dtype=dtype)
    leaves = [x.clone().requires_grad_() for x in (q, kv.k, kv.v, bias)]
    grads = []
    for n in (2, 1):  # the row that sees nothing, and without it
        out = attend(leaves[0][:n], KV(leaves[1][:n], leaves[2][:n]), mask[:n], leaves[3])
        assert (out[0, :, 1] == 0).all()
        assert (out[1:] == 0).all()
        grads.append(torch.autograd.grad(out.float().square().sum(), leaves))
    for with_it, without in zip(*grads, strict=True):
        assert with_it.isfinite().all()
        torch.testing.assert_close(with_it, without)
    assert (grads[0][0][0, :, 1] == 0).all()
    check(q, kv, mask, bias, atol=2e-6 if dtype == torch.float32 else 3e-2)


@pytest.mark.acceptance("A3")
def test_masks_together_equal_deleting_what_they_hide(path):
    """Causal, padding and window at once: each query alone over the slots it sees."""
    q, kv = drawn(queries=6, slots=6)
    pos = torch.tensor([[-1, 0, 1, 2, 3, -1], [0, 1, 2, 3, 4, 5]])
    bias = torch.randn(1, 4, 6, 6) * 3
    out = attend(q, kv, visible(pos, pos[:, None], True, Window(2)), bias)
    for row in range(2):
        for t, at in enumerate(pos[row].tolist()):
            kept = [s for s, p in enumerate(pos[row].tolist()) if p >= 0 and at - 2 < p <= at]
            if not kept:
                assert (out[row, :, t] == 0).all()
                continue
            few = KV(kv.k[row : row + 1, :, kept], kv.v[row : row + 1, :, kept])
            alone = attend(q[row : row + 1, :, t : t + 1], few, None, bias[:, :, t : t + 1, kept])
            torch.testing.assert_close(out[row, :, t], alone[0, :, 0], rtol=0, atol=1e-6)


@pytest.mark.acceptance("A3")
def test_huge_numbers_behind_a_mask_change_nothing(path):
    """Masked scores are -inf, not large negative numbers that other large numbers outweigh."""
    q, kv = drawn()
    mask = torch.ones(2, 1, 3, 5, dtype=torch.bool)
    mask[..., 3:] = False
    clean = attend(q, kv, mask)
    k, v = kv.k.clone(), kv.v.clone()
    k[:, :, 3:], v[:, :, 3:] = 1e18, 1e30
    assert torch.equal(attend(q, KV(k, v), mask), clean)
    hidden = torch.zeros(1, 1, 3, 5)
    hidden[..., 3:] = 1e30
    torch.testing.assert_close(attend(q, kv, mask, hidden), clean)


def test_visible_is_position_by_position():
    q_pos, k_pos = torch.tensor([[-1, 0, 3]]), torch.tensor([[[-1, 0, 1, 2, 3, 4]], [[3, 3, -1, 0, 9, 1]]])
    for causal in (False, True):
        for window in (None, Window(1), Window(2), Window(1, 1), Window(2, 2)):
            near, sink = (99, 0) if window is None else window
            seen = visible(q_pos.expand(2, 3), k_pos, causal, window).expand(2, 1, 3, 6)
            for b in range(2):
                for t, q in enumerate(q_pos[0].tolist()):
                    for s, k in enumerate(k_pos[b, 0].tolist()):
                        wanted = k >= 0 and (not causal or k <= q) and (abs(q - k) < near or k < sink)
                        assert bool(seen[b, 0, t, s]) == wanted


def test_whole_rows_need_no_mask_and_a_window_makes_one():
    kv = KV(torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2))
    assert attention_mask(None, kv, 4, True, None) is None
    near = attention_mask(None, kv, 4, False, Window(2))
    assert near[0, 0].int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    behind = attention_mask(None, kv, 4, True, Window(2))
    assert behind[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


def test_selected_rows_carry_all_their_parts():
    kv = KV(
        *(torch.randn(3, 2, 4, 2) for _ in "kv"), torch.arange(12).view(3, 1, 4), torch.randn(3, 2, 4)
    ).contiguous_for_decoding()
    rows = torch.tensor([2, 0, 2])
    chosen_kv = kv.select(rows)
    for name in ("k", "v", "pos", "log_count", "mask"):
        part, chosen = getattr(kv, name), getattr(chosen_kv, name)
        assert torch.equal(chosen, part[rows])


def test_a_scale_keeps_scores_at_variance_one():
    """q and k of unit variance: Var(q.k) = d, Var(q.k / sqrt d) = 1 (Vaswani et al., 2017, footnote 4)."""
    torch.manual_seed(0)
    for d in (16, 256):
        products = torch.randn(400, d) @ torch.randn(400, d).T
        assert products.var() == pytest.approx(d, rel=0.1)
        assert (products * d**-0.5).var() == pytest.approx(1, rel=0.1)


def test_without_the_scale_softmax_saturates_and_its_gradient_vanishes():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 32, 1024) for _ in "qkv")
    found = {}
    for name, scale in (("scaled", None), ("raw", 1.0)):
        watched, leaf = [], q.clone().requires_grad_()
        attend(leaf, KV(k, v), scale=scale, hooks=[watched.append])[..., 0].sum().backward()
        s = 1024**-0.5 if scale is None else scale
        found[name] = watched[0].amax(-1).mean().item(), (leaf.grad.norm(dim=-1) / s).median().item()
    assert found["scaled"][0] < 0.3 < 0.9 < found["raw"][0]
    assert found["raw"][1] < 0.2 * found["scaled"][1]


def test_dropout_falls_on_the_weights_and_keeps_their_mean(path):
    q, kv = drawn(rows=1, queries=1)
    dropped = attend(q.expand(-1, -1, 5000, -1), kv, dropout=0.3)
    torch.testing.assert_close(dropped.mean(2), attend(q, kv)[:, :, 0], rtol=0, atol=0.05)
    assert dropped.std(2).min() > 0.05


def test_decoding_and_short_bf16_training_go_by_hand_and_nothing_changes():
    """The choice of path is about speed alone."""
    for beams, queries, slots in ((1, 1, 5), (3, 1, 5)):
        q, kv = drawn(rows=2, beams=beams, queries=queries, slots=slots)
        check(q, kv, torch.rand(2, 1, 1, slots) < 0.7)
    q, kv = drawn(dtype=torch.bfloat16, queries=5)
    leaf = q.requires_grad_()
    torch.testing.assert_close(
        attend(leaf, kv, causal=True).double(), reference(q.detach(), kv, causal=True)[0], rtol=0, atol=3e-2
    )
