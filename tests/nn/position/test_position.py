"""Position schemes against the formulas of their papers, in double precision."""

import itertools
import math

import pytest
import torch

from polyhead.config.model import AttentionShape
from polyhead.core.errors import UserError
from polyhead.core.registry import POSITION
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.learned import LearnedPosition
from polyhead.nn.position.sinusoidal import SinusoidalPosition


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_sinusoids_follow_the_formula_at_any_width_and_beyond_any_length(width):
    scheme = SinusoidalPosition(AttentionShape.from_sizes(width, 1, max_len=4))
    for length in (3, 4, 5, 300):  # the table held 4
        out = scheme.embed(torch.zeros(1, length, width), None)[0]
        for i in {0, 1, length - 1}:
            for c in range(width):
                angle = i / 10000 ** (2 * (c // 2) / width)
                wanted = math.cos(angle) if c % 2 else math.sin(angle)
                assert float(out[i, c]) == pytest.approx(wanted, abs=1e-6)


def test_sinusoids_are_added_at_the_positions_given():
    scheme = SinusoidalPosition(AttentionShape.from_sizes(6, 1, max_len=4))
    x, pos = torch.randn(2, 3, 6), torch.tensor([[5, -1, 0], [2, 700, 1]])
    whole = scheme.embed(torch.zeros(1, 701, 6), None)[0]
    out = scheme.embed(x, pos)
    seen = pos >= 0
    torch.testing.assert_close(out[seen], x[seen] + whole[pos[seen]])
    assert out.isfinite().all()


def marian(width):
    """The table (9, width) of Marian in transformers."""
    module = pytest.importorskip("transformers.models.marian.modeling_marian")
    return module.MarianSinusoidalPositionalEmbedding(9, width).create_weight()


def m2m100(width):
    """Rows 0 to 8 of the table of M2M100 in transformers."""
    module = pytest.importorskip("transformers.models.m2m_100.modeling_m2m_100")
    return module.M2M100SinusoidalPositionalEmbedding.get_embedding(9, width, None)


@pytest.mark.parametrize("width", [4, 6, 7, 16])
def test_sines_before_cosines_are_those_of_marian(width):
    scheme = SinusoidalPosition(AttentionShape.from_sizes(width, 1, max_len=4), layout="halves")
    torch.testing.assert_close(
        scheme.embed(torch.zeros(1, 9, width), None)[0], marian(width), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("width", [4, 6, 16])
def test_with_endpoint_and_offset_they_are_those_of_m2m100(width):
    scheme = SinusoidalPosition(
        AttentionShape.from_sizes(width, 1, max_len=4), layout="halves", endpoint=True, offset=2
    )
    wanted = m2m100(width)
    torch.testing.assert_close(
        scheme.embed(torch.zeros(1, 3, width), None)[0], wanted[2:5], rtol=0, atol=1e-5
    )
    torch.testing.assert_close(scheme.embed(torch.zeros(1, 7, width), None)[0], wanted[2:], rtol=0, atol=1e-5)
    pos = torch.tensor([[6, 0, 3]])
    torch.testing.assert_close(
        scheme.embed(torch.zeros(1, 3, width), pos), wanted[pos + 2], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_every_layout_and_end_of_sinusoids_follows_the_formula_at_any_width(width):
    for layout, endpoint in itertools.product(("interleaved", "halves"), (False, True)):
        out = SinusoidalPosition(
            AttentionShape.from_sizes(width, 1), layout=layout, endpoint=endpoint, base=50.0, offset=3
        ).embed(torch.zeros(1, 5, width), None)[0]
        rates = (width + 1) // 2
        for i, c in itertools.product(range(5), range(width)):
            j, cosine = (c // 2, c % 2) if layout == "interleaved" else (c % rates, c // rates)
            angle = (i + 3) / 50 ** (j / max(1, rates - 1) if endpoint else 2 * j / width)
            assert float(out[i, c]) == pytest.approx(math.cos(angle) if cosine else math.sin(angle), abs=1e-6)


def test_the_table_of_sinusoids_follows_the_module():
    scheme = SinusoidalPosition(AttentionShape.from_sizes(6, 1, max_len=4)).to(torch.bfloat16)
    assert scheme.embed(torch.zeros(1, 9, 6, dtype=torch.bfloat16), None).dtype == torch.bfloat16
    assert scheme.table.dtype == torch.bfloat16
    assert scheme.embed(torch.zeros(1, 2, 6), None).dtype == torch.float32
    meta = SinusoidalPosition(AttentionShape.from_sizes(6, 1, max_len=4)).to("meta")
    assert meta.embed(torch.zeros(1, 9, 6, device="meta"), None).device.type == "meta"
    assert not list(scheme.state_dict())


def test_a_table_that_grew_while_decoding_can_still_be_trained_with():
    scheme = SinusoidalPosition(AttentionShape.from_sizes(6, 1, max_len=4))
    with torch.inference_mode():
        scheme.embed(torch.zeros(1, 50, 6), None)
    x = torch.zeros(1, 50, 6, requires_grad=True)
    for pos in (None, torch.arange(50)[None]):
        (scheme.embed(x * 2, pos) ** 2).sum().backward()
    assert x.grad.isfinite().all()
    scheme.to(torch.float64)


def test_learned_positions_are_rows_of_a_table():
    scheme = LearnedPosition(AttentionShape.from_sizes(6, 1, max_len=4))
    x, pos = torch.randn(2, 3, 6), torch.tensor([[3, -1, 0], [2, 1, 1]])
    torch.testing.assert_close(scheme.embed(x, None), x + scheme.weight[:3])
    out = scheme.embed(x, pos)
    assert torch.equal(out[pos >= 0], (x[pos >= 0] + scheme.weight[pos[pos >= 0]]))
    out[pos >= 0].sum().backward()
    assert scheme.weight.grad[:, 0].tolist() == [1, 2, 1, 1]


def test_learned_positions_with_an_offset_are_those_of_opt():
    """Whose table has two rows more than positions; position i of a padded row reads row i + 2."""
    opt = pytest.importorskip("transformers.models.opt.modeling_opt")
    scheme, theirs = (
        LearnedPosition(AttentionShape.from_sizes(6, 1, max_len=7), offset=2),
        opt.OPTLearnedPositionalEmbedding(7, 6),
    )
    assert scheme.weight.shape == theirs.weight.shape
    theirs.weight.data.copy_(scheme.weight)
    seen = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    pos = torch.where(seen == 1, seen.cumsum(1) - 1, -1)
    out = scheme.embed(torch.zeros(2, 7, 6), pos)
    assert torch.equal(out[pos >= 0], theirs(seen)[pos >= 0])
    assert torch.equal(scheme.embed(torch.zeros(1, 5, 6), None)[0], scheme.weight[2:7])


@pytest.mark.parametrize("scheme", [LearnedPosition, SinusoidalPosition])
def test_an_offset_below_0_is_a_user_error(scheme):
    with pytest.raises(UserError, match=r"offset of .*, 0 or more; here it is -1"):
        scheme(AttentionShape.from_sizes(6, 1), offset=-1)


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("pos", [None, torch.tensor([[0, 4]])])
def test_beyond_the_learned_positions_is_a_user_error(pos, offset):
    scheme = LearnedPosition(AttentionShape.from_sizes(6, 1, max_len=4), offset=offset)
    with pytest.raises(UserError, match=r"5 positions, .* max_len=4"):
        scheme.embed(torch.zeros(1, 5 if pos is None else 2, 6), pos)


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize("scheme", POSITION.names())
def test_attention_without_positions_is_permutation_equivariant(scheme):
    torch.manual_seed(0)
    shape = AttentionShape.from_sizes(8, 2, 1)
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
    shape = AttentionShape.from_sizes(8, 2, 1, causal=causal)
    attention = Attention(shape, POSITION.get(scheme)(shape)).double()
    x, pos = torch.randn(2, 6, 8).double(), torch.tensor([[0, 1, 2, 3, 4, 5], [-1, 0, -1, 1, 4, 30]])
    seen = pos >= 0
    here = attention(x, pos)
    for shift in (1, 100):
        moved = attention(x, torch.where(seen, pos + shift, -1))
        torch.testing.assert_close(moved[seen], here[seen], rtol=0, atol=2e-5)  # angles are in fp32
    torch.testing.assert_close(attention(x, None)[0], here[0], rtol=0, atol=1e-12)
    assert (attention(x, torch.where(seen, 2 * pos, -1)) - here)[seen].abs().max() > 1e-3
