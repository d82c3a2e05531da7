"""Tests of nn/position/sinusoidal.py."""

import itertools
import math

import pytest
import torch

from polyhead.config.model import AttentionShape
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


def test_a_huge_max_len_takes_memory_only_for_positions_that_are_used():
    """max_len is an initial size: 2^31 rows would be 128 GB."""
    scheme = SinusoidalPosition(AttentionShape.from_sizes(16, 1, max_len=2**31 - 1))
    assert len(scheme.table) == 2**16
    found = scheme.embed(torch.zeros(1, 1, 16), torch.tensor([[2**16 + 5]]))[0, 0]
    assert float(found[0]) == pytest.approx(math.sin(2**16 + 5), abs=1e-6)
