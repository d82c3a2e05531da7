import itertools
import math

import pytest
import torch

from polyhead.config.model import AttentionShape
from polyhead.nn.position.absolute import SinusoidalPosition


def make_scheme(width, max_len=4, **options):
    return SinusoidalPosition(AttentionShape.from_sizes(width, 1, max_len=max_len), **options)


def compute_table(scheme, length, width):
    return scheme.embed(torch.zeros(1, length, width), None)[0]


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_table_equals_the_formula(width):
    layouts, bases = ("interleaved", "halves"), (10000.0, 50.0)
    x, pos = torch.randn(2, 3, width), torch.tensor([[5, -1, 0], [2, 700, 1]])
    for layout, endpoint, base, offset in itertools.product(layouts, (False, True), bases, (0, 3)):
        scheme = make_scheme(width, layout=layout, endpoint=endpoint, base=base, offset=offset)
        n_rates = (width + 1) // 2
        for length in (3, 5, 300):
            output = compute_table(scheme, length, width)
            for i, c in itertools.product({0, 1, length - 1}, range(width)):
                j, is_cosine = (c // 2, c % 2) if layout == "interleaved" else (c % n_rates, c // n_rates)
                angle = (i + offset) / base ** (j / max(1, n_rates - 1) if endpoint else 2 * j / width)
                expected = math.cos(angle) if is_cosine else math.sin(angle)
                assert float(output[i, c]) == pytest.approx(expected, abs=1e-6 if i < 9 else 2e-5)
        table, output, is_token = compute_table(scheme, 701, width), scheme.embed(x, pos), pos >= 0
        torch.testing.assert_close(output[is_token], x[is_token] + table[pos[is_token]])
        assert output.isfinite().all()


@pytest.mark.parametrize("width", [4, 6, 7, 16])
def test_halves_equal_those_of_marian(width):
    module = pytest.importorskip("transformers.models.marian.modeling_marian")
    expected = module.MarianSinusoidalPositionalEmbedding(9, width).create_weight()
    output = compute_table(make_scheme(width, layout="halves"), 9, width)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("width", [4, 6, 16])
def test_endpoint_and_offset_equal_those_of_m2m100(width):
    module = pytest.importorskip("transformers.models.m2m_100.modeling_m2m_100")
    expected = module.M2M100SinusoidalPositionalEmbedding.get_embedding(9, width, None)
    scheme, pos = make_scheme(width, layout="halves", endpoint=True, offset=2), torch.tensor([[6, 0, 3]])
    torch.testing.assert_close(compute_table(scheme, 7, width), expected[2:], rtol=0, atol=1e-5)
    output = scheme.embed(torch.zeros(1, 3, width), pos)
    torch.testing.assert_close(output, expected[pos + 2], rtol=0, atol=1e-5)


def test_table_follows_dtype_mode_and_length():
    """2^31 rows would be 128 GB."""
    scheme = make_scheme(6).to(torch.bfloat16)
    assert scheme.embed(torch.zeros(1, 9, 6, dtype=torch.bfloat16), None).dtype == torch.bfloat16
    assert scheme.table.dtype == torch.bfloat16
    assert scheme.embed(torch.zeros(1, 2, 6), None).dtype == torch.float32
    meta = make_scheme(6).to("meta")
    assert meta.embed(torch.zeros(1, 9, 6, device="meta"), None).device.type == "meta"
    assert not list(scheme.state_dict())
    scheme, x = make_scheme(6), torch.zeros(1, 50, 6, requires_grad=True)
    with torch.inference_mode():
        scheme.embed(torch.zeros(1, 50, 6), None)
    for pos in (None, torch.arange(50)[None]):
        (scheme.embed(x * 2, pos) ** 2).sum().backward()
    assert x.grad.isfinite().all()
    scheme.to(torch.float64)
    scheme = make_scheme(16, max_len=2**31 - 1)
    assert len(scheme.table) == 2**16
    output = scheme.embed(torch.zeros(1, 1, 16), torch.tensor([[2**16 + 5]]))[0, 0]
    assert float(output[0]) == pytest.approx(math.sin(2**16 + 5), abs=1e-6)
