import itertools

import pytest
import torch
import torch.nn.functional as F
from tests.nn.position.relative_distance_helpers import POSITIONS, iter_positions, make_inputs, make_scheme

from polyhead.config.model import AttentionShape
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.kv import KV
from polyhead.nn.position.relative import Shaw


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("clip", [2, 16])
def test_relative_values_are_summed_with_the_weights(positions, clip):
    """sum_s weight_s * vector_s (Shaw et al., 2018, eq. 3, second term)."""
    scheme, (q, kv, q_pos, k_pos) = make_scheme("shaw", clip=clip), make_inputs(positions)
    weights = torch.rand(3, 4, q.size(2), 5, dtype=torch.double)
    if k_pos is not None:
        weights *= (k_pos >= 0).repeat_interleave(4 // k_pos.size(1), 1)[:, :, None]
    expected = torch.zeros(3, 4, q.size(2), 2).double()
    for (b, h, t, s), i, j in iter_positions(q_pos, k_pos, q.size(2)):
        expected[b, h, t] += weights[b, h, t, s] * scheme.value.data[min(max(j - i, -clip), clip) + clip]
    output = scheme.values(weights, kv, q_pos)
    is_token = torch.ones(3, 1, q.size(2), 1) if q_pos is None else (q_pos >= 0)[:, None, :, None]
    torch.testing.assert_close(output * is_token, expected)


def test_relative_values_are_summed_in_fp32():
    """A thousand small weights of one distance, in bf16."""
    scheme = Shaw(AttentionShape.from_sizes(2, 1), clip=1).to(torch.bfloat16)
    weights = torch.full((1, 1, 1, 1000), 1 / 1024, dtype=torch.bfloat16)
    kv = KV(*torch.zeros(2, 1, 1, 1000, 2, dtype=torch.bfloat16), torch.arange(1000)[None, None])
    output = scheme.values(weights, kv, torch.tensor([[2000]]))[0, 0, 0].float()
    torch.testing.assert_close(output, scheme.value[0].float() * 1000 / 1024, rtol=1e-2, atol=0)


@torch.no_grad()
def test_dropout_masks_values_and_relative_values_together():
    """One weight for v_j + b_{j-i} (Shaw et al., 2018, eq. 3); hooks receive it before dropout."""
    shape = AttentionShape.from_sizes(12, 4, 2, head_dim=3, v_head_dim=2, causal=True)
    a = Attention(shape, make_scheme("shaw", causal=True, clip=2), dropout=0.5).double()
    x, calls = torch.randn(2, 7, 12, dtype=torch.double), []
    a.weights_hooks.append(calls.append)
    torch.manual_seed(5)
    output = a(x)
    (weights,), v = calls, a.v_proj(x).unflatten(-1, (2, 2))
    torch.manual_seed(5)  # heads of a group are more queries on its keys: (B, K, group * T, S)
    alphas = F.dropout(weights.view(2, 2, 14, 7), 0.5).view(2, 4, 7, 7)
    assert (weights.sum(-1) - 1).abs().max() < 1e-6
    assert 0.4 < float((alphas[weights > 0] == 0).double().mean()) < 0.6
    h = torch.zeros(2, 7, 4, 2, dtype=torch.double)
    for b, head, t, s in itertools.product(range(2), range(4), range(7), range(7)):
        vector = a.position.value[min(max(s - t, -2), 2) + 2]
        h[b, t, head] += alphas[b, head, t, s] * (v[b, s, head // 2] + vector)
    torch.testing.assert_close(output, a.o_proj(h.flatten(2)), rtol=0, atol=1e-6)
