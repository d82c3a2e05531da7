"""Position schemes against the formulas of their papers, in double precision."""

import math

import pytest
import torch
from pydantic import ValidationError

from polyhead.config import ModelConfig, Shape
from polyhead.errors import UserError
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.base import Position
from polyhead.nn.position.learned import Learned
from polyhead.nn.position.rope import Rope
from polyhead.nn.position.sinusoidal import Sinusoidal


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


@pytest.mark.parametrize(("dim", "theta"), [(2, 10000.0), (8, 10000.0), (6, 50.0)])
def test_rope_multiplies_complex_numbers_by_unit_ones(dim, theta):
    """Feature j and feature j + dim/2 are the two parts of one number."""
    scheme = Rope(Shape.of(dim, 1, max_len=16), theta=theta)
    x, pos = torch.randn(2, 3, 4, dim), torch.tensor([[0, 1, -1, 7], [3, 500, 2, 0]])
    z = torch.complex(x[..., : dim // 2].double(), x[..., dim // 2 :].double())
    rates = torch.tensor([theta ** (-2 * j / dim) for j in range(dim // 2)], dtype=torch.double)
    turned = z * torch.exp(1j * pos[:, None, :, None] * rates)
    wanted = torch.cat([turned.real, turned.imag], -1)
    torch.testing.assert_close(scheme.rotate(x, pos).double(), wanted, rtol=0, atol=2e-4)
    torch.testing.assert_close(scheme.rotate(x, None), scheme.rotate(x, torch.arange(4).expand(2, 4)))


def test_with_rope_a_product_depends_on_the_distance_alone():
    scheme = Rope(Shape.of(8, 1, max_len=16))
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(i, j):
        at = scheme.rotate(q, torch.tensor([[i]])), scheme.rotate(k, torch.tensor([[j]]))
        return float((at[0] * at[1]).sum())

    for distance in (-3, 0, 5):
        found = [product(start + distance, start) for start in (3, 10, 200)]
        assert found == pytest.approx([found[0]] * 3, abs=1e-4)
    assert abs(product(3, 0) - product(0, 3)) > 1e-3
    assert float(scheme.rotate(q, torch.tensor([[9]])).norm()) == pytest.approx(float(q.norm()), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_rope_keeps_its_angles_in_fp32_whatever_the_model_is_in(dtype):
    plain, other = Rope(Shape.of(16, 1, max_len=16)), Rope(Shape.of(16, 1, max_len=16)).to(dtype)
    x, pos = torch.randn(1, 1, 3, 16).to(dtype), torch.tensor([[1000, 5001, 257]])
    out = other.rotate(x, pos)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), plain.rotate(x.float(), pos), rtol=0, atol=4e-2)
    assert not list(other.state_dict())


def test_rope_wants_pairs_of_features_and_says_what_to_do():
    with pytest.raises(ValidationError, match=r"head_dim must be even for rope.* 5 .*nearest head_dim is 4 or 6"):
        ModelConfig(vocab_size=9, d_model=10, n_heads=2, position="rope")
    with pytest.raises(UserError, match=r"nearest head_dim is 2 or 4$"):
        Rope(Shape.of(3, 1, max_len=16))


@pytest.mark.parametrize("scheme", [Position, Sinusoidal, Rope])
def test_attention_without_positions_is_permutation_equivariant(scheme):
    torch.manual_seed(0)
    shape = Shape.of(8, 2, 1)
    position = scheme(shape)
    attention = Attention(shape, position)
    x, order = torch.randn(2, 6, 8), torch.tensor([3, 0, 5, 1, 4, 2])

    def output(x):
        return attention(position.embed(x, None))

    off = (output(x[:, order]) - output(x)[:, order]).abs().max()
    assert off < 1e-6 if scheme is Position else off > 1e-3
