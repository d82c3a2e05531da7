"""Position schemes against the formulas of their papers, in double precision."""

import math

import pytest
import torch

from polyhead.config import Shape
from polyhead.errors import UserError
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.learned import Learned
from polyhead.nn.position.sinusoidal import Sinusoidal
from polyhead.registry import POSITION


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_sinusoids_follow_the_formula_at_any_width_and_beyond_any_length(width):
    scheme = Sinusoidal(Shape.of(width, 1, max_len=4))
    for length in (3, 4, 5, 300):  # the table held 4
        out = scheme.embed(torch.zeros(1, length, width), None)[0]
        for i in {0, 1, length - 1}:
            for c in range(width):
                angle = i / 10000 ** (2 * (c // 2) / width)
                wanted = math.cos(angle) if c % 2 else math.sin(angle)
                assert float(out[i, c]) == pytest.approx(wanted, abs=1e-6)


def test_sinusoids_are_added_at_the_positions_given():
    scheme = Sinusoidal(Shape.of(6, 1, max_len=4))
    x, pos = torch.randn(2, 3, 6), torch.tensor([[5, -1, 0], [2, 700, 1]])
    whole = scheme.embed(torch.zeros(1, 701, 6), None)[0]
    out = scheme.embed(x, pos)
    seen = pos >= 0
    torch.testing.assert_close(out[seen], x[seen] + whole[pos[seen]])
    assert out.isfinite().all()


def test_the_table_of_sinusoids_follows_the_module():
    scheme = Sinusoidal(Shape.of(6, 1, max_len=4)).to(torch.bfloat16)
    assert scheme.embed(torch.zeros(1, 9, 6, dtype=torch.bfloat16), None).dtype == torch.bfloat16
    assert scheme.table.dtype == torch.bfloat16
    assert scheme.embed(torch.zeros(1, 2, 6), None).dtype == torch.float32
    meta = Sinusoidal(Shape.of(6, 1, max_len=4)).to("meta")
    assert meta.embed(torch.zeros(1, 9, 6, device="meta"), None).device.type == "meta"
    assert not list(scheme.state_dict())


def test_a_table_that_grew_while_decoding_can_still_be_trained_with():
    scheme = Sinusoidal(Shape.of(6, 1, max_len=4))
    with torch.inference_mode():
        scheme.embed(torch.zeros(1, 50, 6), None)
    x = torch.zeros(1, 50, 6, requires_grad=True)
    for pos in (None, torch.arange(50)[None]):
        (scheme.embed(x * 2, pos) ** 2).sum().backward()
    assert x.grad.isfinite().all()
    scheme.to(torch.float64)


def test_learned_positions_are_rows_of_a_table():
    scheme = Learned(Shape.of(6, 1, max_len=4))
    x, pos = torch.randn(2, 3, 6), torch.tensor([[3, -1, 0], [2, 1, 1]])
    torch.testing.assert_close(scheme.embed(x, None), x + scheme.weight[:3])
    out = scheme.embed(x, pos)
    assert torch.equal(out[pos >= 0], (x[pos >= 0] + scheme.weight[pos[pos >= 0]]))
    out[pos >= 0].sum().backward()
    assert scheme.weight.grad[:, 0].tolist() == [1, 2, 1, 1]


@pytest.mark.parametrize("pos", [None, torch.tensor([[0, 4]])])
def test_beyond_the_learned_positions_is_a_user_error(pos):
    scheme = Learned(Shape.of(6, 1, max_len=4))
    with pytest.raises(UserError, match=r"5 positions, .* max_len=4"):
        scheme.embed(torch.zeros(1, 5 if pos is None else 2, 6), pos)


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize("scheme", POSITION.names())
def test_attention_without_positions_is_permutation_equivariant(scheme):
    torch.manual_seed(0)
    shape = Shape.of(8, 2, 1)
    position = POSITION.get(scheme)(shape)
    attention = Attention(shape, position)
    x, order = torch.randn(2, 6, 8), torch.tensor([3, 0, 5, 1, 4, 2])

    def output(x):
        return attention(position.embed(x, None))

    off = (output(x[:, order]) - output(x)[:, order]).abs().max()
    assert off < 1e-6 if scheme == "none" else off > 1e-3


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("scheme", sorted(set(POSITION.names()) - {"none", "learned", "sinusoidal"}))
def test_relative_schemes_know_distances_alone(scheme, causal):
    """All positions moved by the same number: the same output. Moved apart: another one."""
    torch.manual_seed(0)
    shape = Shape.of(8, 2, 1, causal=causal)
    attention = Attention(shape, POSITION.get(scheme)(shape)).double()
    x, pos = torch.randn(2, 6, 8).double(), torch.tensor([[0, 1, 2, 3, 4, 5], [-1, 0, -1, 1, 4, 30]])
    seen = pos >= 0
    here = attention(x, pos)
    for shift in (1, 100):
        moved = attention(x, torch.where(seen, pos + shift, -1))
        torch.testing.assert_close(moved[seen], here[seen], rtol=0, atol=2e-5)  # angles are in fp32
    torch.testing.assert_close(attention(x, None)[0], here[0], rtol=0, atol=1e-12)
    assert (attention(x, torch.where(seen, 2 * pos, -1)) - here)[seen].abs().max() > 1e-3
