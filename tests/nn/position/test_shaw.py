"""Tests of nn/position/shaw.py."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from tests.nn.position.relative_distance_helpers import PLACES, scheme

from polyhead.config.model import AttentionShape
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.kv import KV
from polyhead.nn.position.shaw import Shaw


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("clip", [2, 16])
def test_relative_values_are_summed_with_the_weights(place, clip):
    """sum_s weight_s * vector_s (Shaw et al., 2018, eq. 3, second term)."""
    made = scheme("shaw", clip=clip)
    q_pos, k_pos = PLACES[place]
    weights = torch.rand(3, 4, 5 if q_pos is None else q_pos.size(1), 5, dtype=torch.double)
    if k_pos is not None:
        weights *= (k_pos >= 0).repeat_interleave(4 // k_pos.size(1), 1)[:, :, None]
    kv = KV(torch.randn(3, 2, 5, 3).double(), torch.randn(3, 2, 5, 2).double(), k_pos)
    out = made.values(weights, kv, q_pos)
    for b, h, t in itertools.product(range(3), range(4), range(weights.size(2))):
        at = t if q_pos is None else int(q_pos[b, t])
        if at < 0:
            continue
        wanted = torch.zeros(2).double()
        for s in range(5):
            own = 0 if k_pos is None or k_pos.size(1) == 1 else h // 2
            to = s if k_pos is None else int(k_pos[b, own, s])
            wanted += weights[b, h, t, s] * made.value[min(max(to - at, -clip), clip) + clip]
        torch.testing.assert_close(out[b, h, t], wanted)


def test_relative_values_are_summed_in_fp32():
    """A thousand small weights of one distance, in bf16."""
    made = Shaw(AttentionShape.from_sizes(2, 1), clip=1).to(torch.bfloat16)
    weights = torch.full((1, 1, 1, 1000), 1 / 1024, dtype=torch.bfloat16)
    kv = KV(*torch.zeros(2, 1, 1, 1000, 2, dtype=torch.bfloat16), torch.arange(1000)[None, None])
    out = made.values(weights, kv, torch.tensor([[2000]]))
    torch.testing.assert_close(out[0, 0, 0].float(), made.value[0].float() * 1000 / 1024, rtol=1e-2, atol=0)


@torch.no_grad()
def test_dropout_falls_on_values_and_on_what_shaw_adds_to_them_alike():
    """One weight for v_j + b_{j-i}, Shaw et al., 2018, eq. 3; watchers see it before dropout."""
    shape = AttentionShape.from_sizes(12, 4, 2, head_dim=3, v_head_dim=2, causal=True)
    a = Attention(shape, scheme("shaw", causal=True, clip=2), dropout=0.5).double()
    x, watched = torch.randn(2, 7, 12, dtype=torch.double), []
    a.weights_hooks.append(watched.append)
    torch.manual_seed(5)
    found = a(x)
    v = a.v_proj(x).unflatten(-1, (2, 2))
    torch.manual_seed(5)  # heads of a group are more queries on its keys: (B, K, group * T, S)
    alphas = F.dropout(watched[0].view(2, 2, 14, 7), 0.5).view(2, 4, 7, 7)
    assert (watched[0].sum(-1) - 1).abs().max() < 1e-6
    assert 0.4 < float((alphas[watched[0] > 0] == 0).double().mean()) < 0.6
    out = torch.zeros(2, 7, 4, 2, dtype=torch.double)
    for b, h, t, s in itertools.product(range(2), range(4), range(7), range(7)):
        apart = min(max(s - t, -2), 2) + 2
        out[b, t, h] += alphas[b, h, t, s] * (v[b, s, h // 2] + a.position.value[apart])
    torch.testing.assert_close(found, a.o_proj(out.flatten(2)), rtol=0, atol=1e-6)
