import itertools
import math

import pytest
import torch

import polyhead.nn.kv as kv_module
from polyhead.nn.kv import KV, Window, attend, attention_mask, visible


def reference(q, kv, mask=None, bias=None, causal=False, scale=None):
    """softmax(q k^T scale + bias) v, a query and a slot at a time: (outputs, weights) in float64."""
    (N, H, T, D), (B, K, S, _), V = q.shape, kv.k.shape, kv.v.size(3)
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask is None else mask
    mask = mask.repeat_interleave(N // B, 0) if mask.size(0) == B else mask
    is_visible = mask.expand(N, mask.size(1), T, S).tolist()
    biases = (torch.zeros(1, 1, 1, 1) if bias is None else bias).double().expand(N, H, T, S).tolist()
    counts = (torch.zeros(B, K, S) if kv.log_count is None else kv.log_count).double().tolist()
    qs, ks, vs = (x.double().tolist() for x in (q, kv.k, kv.v))
    output, weights = torch.zeros(N, H, T, V).double(), torch.zeros(N, H, T, S).double()
    for i, h, t in itertools.product(range(N), range(H), range(T)):
        row, head = i // (N // B), h // (H // K)
        visible_slots = is_visible[i][head if len(is_visible[i]) > 1 else 0][t]
        terms = []
        for s in range(S):
            score = sum(a * b for a, b in zip(qs[i][h][t], ks[row][head][s], strict=True))
            score = score * (D**-0.5 if scale is None else scale) + biases[i][h][t][s] + counts[row][head][s]
            terms.append(math.exp(score) if visible_slots[s] and (not causal or s <= t) else 0.0)
        total = sum(terms) or 1.0
        weights[i, h, t] = torch.tensor([term / total for term in terms])
        for w, v in zip(terms, vs[row][head], strict=True):
            output[i, h, t] += w / total * torch.tensor(v, dtype=torch.double)
    return output, weights


def make_inputs(heads=4, kv_heads=2, rows=2, beams=1, queries=3, slots=5, v_width=4, dtype=torch.float32):
    torch.manual_seed(0)
    q = torch.randn(rows * beams, heads, queries, 4).to(dtype)
    k, v = (torch.randn(rows, kv_heads, slots, width).to(dtype) for width in (4, v_width))
    return q, KV(k, v)


@pytest.fixture(params=["fused", "math"])
def path(request, monkeypatch):
    monkeypatch.setattr(kv_module, "_prefer_math_attention", lambda q, kv: request.param == "math")
    return request.param


def check(q, kv, *args, atol=2e-6, **options):
    expected, expected_weights = reference(q, kv, *args, **options)
    torch.testing.assert_close(attend(q, kv, *args, **options).double(), expected, rtol=0, atol=atol)
    calls = []
    output = attend(q, kv, *args, **options, hooks=[calls.append])
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=atol)
    (weights,) = calls
    torch.testing.assert_close(weights.double(), expected_weights, rtol=0, atol=atol)
    sums = weights.sum(-1)
    assert q.dtype != torch.float32 or (((sums - 1).abs() < 1e-5) | (sums == 0)).all()


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 4, 6, 12])
def test_grouped_heads_read_their_key_head(path, kv_heads):
    """Every number of key heads that divides 12, in the order of published checkpoints."""
    for v_width in (1, 4, 7):
        check(*make_inputs(heads=12, kv_heads=kv_heads, v_width=v_width), torch.rand(2, 1, 3, 5) < 0.5)
    check(*make_inputs(heads=12, kv_heads=kv_heads))


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_masks_biases_and_counts_of_every_shape(path, rows, beams, kv_heads):
    q, kv = make_inputs(rows=rows, beams=beams, kv_heads=kv_heads)
    N = rows * beams
    masks = [None] + [torch.rand(n, k, t, 5) < 0.6 for n in {1, N} for k in {1, kv_heads} for t in (1, 3)]
    masks += [torch.rand(rows, 1, 1, 5) < 0.6]
    biases = [None] + [torch.randn(n, h, 3, 5) for n in {1, N} for h in (1, 4)]
    counted = kv.replace(log_count=torch.randn(rows, kv_heads, 5))
    for i, mask in enumerate(masks):
        for bias in (None, biases[i % len(biases)], biases[-1 - i % 3]):
            check(q, counted if i % 2 else kv, mask, bias)
    check(q, kv, None, biases[1], scale=0.1)


@pytest.mark.parametrize("beams", [1, 2])
def test_causal_attention_and_scale(path, beams):
    q, kv = make_inputs(queries=5, beams=beams)
    check(q, kv, causal=True)
    check(q, kv, causal=True, scale=1.0)
    check(q, kv, scale=0.0)


@pytest.mark.acceptance("A1", "A2")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_fully_masked_query_gives_zero_and_finite_gradients(path, dtype):
    q, kv = make_inputs(dtype=dtype)
    mask = torch.rand(2, 1, 3, 5) < 0.6
    mask[0, 0, 1], mask[1] = False, False
    mask[0, 0, 0, 0] = True
    bias = torch.randn(1, 4, 3, 5, dtype=dtype)
    leaves = [x.clone().requires_grad_() for x in (q, kv.k, kv.v, bias)]
    gradients = []
    for n in (2, 1):  # with and without the row that is fully masked
        output = attend(leaves[0][:n], KV(leaves[1][:n], leaves[2][:n]), mask[:n], leaves[3])
        assert (output[0, :, 1] == 0).all() and (output[1:] == 0).all()
        gradients.append(torch.autograd.grad(output.float().square().sum(), leaves))
    for both_rows, first_row in zip(*gradients, strict=True):
        assert both_rows.isfinite().all()
        torch.testing.assert_close(both_rows, first_row)
    assert (gradients[0][0][0, :, 1] == 0).all()
    check(q, kv, mask, bias, atol=2e-6 if dtype == torch.float32 else 3e-2)


@pytest.mark.acceptance("A3")
def test_combined_masks_equal_deleting_hidden_slots(path):
    q, kv = make_inputs(queries=6, slots=6)
    pos = torch.tensor([[-1, 0, 1, 2, 3, -1], [0, 1, 2, 3, 4, 5]])
    bias = torch.randn(1, 4, 6, 6) * 3
    output = attend(q, kv, visible(pos, pos[:, None], True, Window(2)), bias)
    for row, positions in enumerate(pos.tolist()):
        for t, q_pos in enumerate(positions):
            slots = [s for s, p in enumerate(positions) if p >= 0 and q_pos - 2 < p <= q_pos]
            if not slots:
                assert (output[row, :, t] == 0).all()
                continue
            kv_slots = KV(kv.k[row : row + 1, :, slots], kv.v[row : row + 1, :, slots])
            expected = attend(q[row : row + 1, :, t : t + 1], kv_slots, None, bias[:, :, t : t + 1, slots])
            torch.testing.assert_close(output[row, :, t], expected[0, :, 0], rtol=0, atol=1e-6)


@pytest.mark.acceptance("A3")
def test_huge_masked_values_have_no_effect(path):
    """Masked scores are -inf, not large negative numbers that other large numbers outweigh."""
    q, kv = make_inputs()
    mask = torch.ones(2, 1, 3, 5, dtype=torch.bool)
    mask[..., 3:] = False
    expected = attend(q, kv, mask)
    k, v = kv.k.clone(), kv.v.clone()
    k[:, :, 3:], v[:, :, 3:] = 1e18, 1e30
    assert torch.equal(attend(q, KV(k, v), mask), expected)
    bias = torch.zeros(1, 1, 3, 5)
    bias[..., 3:] = 1e30
    torch.testing.assert_close(attend(q, kv, mask, bias), expected)


def test_visible_compares_positions():
    q_pos, k_pos = torch.tensor([[-1, 0, 3]]), torch.tensor([[[-1, 0, 1, 2, 3, 4]], [[3, 3, -1, 0, 9, 1]]])
    windows = (None, Window(1), Window(2), Window(1, 1), Window(2, 2))
    for causal, window in itertools.product((False, True), windows):
        size, sink = (99, 0) if window is None else window
        mask = visible(q_pos.expand(2, 3), k_pos, causal, window).expand(2, 1, 3, 6)
        for b, (t, q), s in itertools.product(range(2), enumerate(q_pos[0].tolist()), range(6)):
            k = int(k_pos[b, 0, s])
            expected = k >= 0 and (not causal or k <= q) and (abs(q - k) < size or k < sink)
            assert bool(mask[b, 0, t, s]) == expected


def test_masks_of_full_rows_and_packed_documents():
    """Slots of a cache are one document, though a position 0 among the queries looks like a second one."""
    kv = KV(torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2))
    assert attention_mask(None, kv, 4, True, None) is None
    for causal, expected in (
        (False, [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]),
        (True, [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]),
    ):
        assert attention_mask(None, kv, 4, causal, Window(2))[0, 0].int().tolist() == expected
    pos = torch.tensor([[0, 1, 0, 1]])
    kv = KV(torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2), pos[:, None])
    for is_own, expected in (
        (False, [[1, 0, 1, 0], [1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1]]),
        (True, [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]),
    ):
        mask = attention_mask(pos, kv, 4, True, own_tokens_only=is_own)
        assert mask[0, 0].int().tolist() == expected


def test_kv_rows_and_paths_do_not_change_results():
    """Decoding and short training in bf16 prefer the math path."""
    k, v = torch.randn(2, 3, 2, 4, 2)
    kv = KV(k, v, torch.arange(12).view(3, 1, 4), torch.randn(3, 2, 4)).contiguous_for_decoding()
    rows = torch.tensor([2, 0, 2])
    selected = kv.select(rows)
    for name in ("k", "v", "pos", "log_count", "mask"):
        assert torch.equal(getattr(selected, name), getattr(kv, name)[rows])
    for beams in (1, 3):
        q, kv = make_inputs(beams=beams, queries=1)
        check(q, kv, torch.rand(2, 1, 1, 5) < 0.7)
    q, kv = make_inputs(dtype=torch.bfloat16, queries=5)
    output = attend(q.clone().requires_grad_(), kv, causal=True)
    expected, _ = reference(q, kv, causal=True)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=3e-2)


def test_dropout_of_weights_keeps_their_mean(path):
    q, kv = make_inputs(rows=1, queries=1)
    output = attend(q.expand(-1, -1, 5000, -1), kv, dropout=0.3)
    torch.testing.assert_close(output.mean(2), attend(q, kv)[:, :, 0], rtol=0, atol=0.05)
    assert output.std(2).min() > 0.05
