"""Products in whole numbers of 8 and 4 bits against the same in double precision, and models made of them."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels

from polyhead.core.choice import Choice
from polyhead.generation.decoding.greedy import greedy_search
from polyhead.kernels.attention import PackedAttention
from polyhead.kernels.int4 import Int4
from polyhead.kernels.int8 import Int8
from polyhead.kernels.int_linear import Int8Linear, Int8LinearFallback
from polyhead.kernels.linear import PANEL
from polyhead.kernels.pack_model import linear_factory, pack_model, packed_dtype
from polyhead.models import build, preset_config

KINDS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(Int8Linear, marks=needs_kernels, id="kernel"),
        pytest.param(Int8LinearFallback, id="torch"),
    ],
)
BITS = pytest.mark.parametrize("bits", [Int8, Int4], ids=["8 bits", "4 bits"])
DTYPES = pytest.mark.parametrize("dtype", ["int8", "int4"])
SHAPES = [(1, 8, 1), (5, 24, 63), (6, 39, 64), (7, 17, 65), (13, 1, 130), (40, 1111, 200), (400, 20, 70)]
CONFIG = preset_config("tiny", 97, n_layers=2, d_model=128, n_heads=4, n_kv_heads=2, max_len=48)


def wholes(x):
    """Of each row in double precision: whole numbers from -127 to 127, and what 1 of them is worth."""
    size = x.double().abs().amax(1, keepdim=True) / 127
    return (x.double() / torch.where(size == 0, 1, size)).round(), size


def product_of_wholes(x, weight, bits):
    """In double precision; of weights of 4 bits their 8 bits are taken as given."""
    (a, a_size), (b, b_size) = wholes(x), wholes(weight)
    if bits is Int4:
        b = Int4(weight).values.double()
    return (a @ b.T) * a_size * b_size.T


def draw(bits, rows, inputs, outputs, dtype=torch.float32):
    """Rows of sizes far apart, and a product's exact result; nothing lies between two whole numbers, where
    rounding may go either way.
    """
    x = torch.randn(rows, inputs, dtype=torch.double) * 10.0 ** torch.randint(-6, 6, (rows, 1))
    x, weight, bias = x.to(dtype), torch.randn(outputs, inputs) * torch.rand(outputs, 1), torch.randn(outputs)
    for y in (x, weight):
        between = (((y.double() / wholes(y)[1]) % 1) - 0.5).abs() < 1e-4
        y[between] = 0
    return x, weight, bias, product_of_wholes(x, weight, bits)


@BITS
@KINDS
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_a_product_is_that_of_the_rounded_numbers(kind, bits, rows, inputs, outputs):
    x, weight, bias, wanted = draw(bits, rows, inputs, outputs)
    worth, whole = wanted.abs().amax(1, keepdim=True), bits(weight)
    assert (kind(whole, None)(x) - wanted).abs().le(2e-6 * worth).all()
    assert (kind(whole, bias)(x) - (wanted + bias.double())).abs().le(2e-6 * (worth + bias.abs().max())).all()
    several = kind(whole, None)(x.expand(2, 3, -1, -1))
    assert several.shape == (2, 3, rows, outputs)
    assert torch.equal(several[1, 2], kind(whole, None)(x))


@BITS
@KINDS
def test_vectors_in_bf16_give_bf16(kind, bits):
    x, weight, bias, wanted = draw(bits, 9, 64, 130, torch.bfloat16)
    found = kind(bits(weight), bias)(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(
        found.double(), wanted + bias.double(), rtol=2**-8, atol=2**-8 * float(bias.abs().max())
    )


@BITS
@KINDS
def test_nothing_gives_the_bias_and_what_is_not_finite_is_not_hidden(kind, bits):
    weight, bias = torch.randn(70, 20), torch.randn(70)
    x = torch.randn(6, 20)
    x[1], x[2, 3], x[3, 19], x[4, 0] = 0, torch.nan, torch.inf, -torch.inf
    found = kind(bits(weight), bias)(x)
    assert torch.equal(found[1], bias)
    assert found[2:5].isnan().all()
    assert found[[0, 5]].isfinite().all()
    weight[3], weight[4, 6], weight[5, 7] = 0, torch.nan, torch.inf
    found = kind(bits(weight), bias)(x)
    assert torch.equal(found[[0, 5], 3], bias[3].expand(2))
    assert found[:, 4].isnan().all()
    assert not found[:, 5].isfinite().any()
    assert found[[0, 1, 5]][:, [2, 6]].isfinite().all()


@BITS
def test_what_is_next_to_nothing_keeps_its_sign(bits):
    """The size of numbers near the least that there is has few bits itself, and 127 of it may be less than
    they are.
    """
    weight = torch.full((2, 4), 2.6e-43) * torch.tensor([[1.0], [-1.0]])
    found = bits(weight).values
    assert (found[0] >= 0).all()
    assert (found[1] <= 0).all()


@BITS
@needs_kernels
def test_a_row_is_the_same_to_the_last_bit_whatever_stands_beside_it(bits):
    x, layer = torch.randn(14, 900), Int8Linear(bits(torch.randn(70, 900)), torch.randn(70))
    for rows in (slice(0, 1), slice(3, 5), slice(0, 6), slice(2, 13)):
        assert torch.equal(layer(x[rows]), layer(x)[rows])


@BITS
@needs_kernels
def test_a_part_of_a_product_is_that_of_its_rows(bits):
    x, layer = (
        torch.randn(3, 10),
        Int8Linear(bits(torch.randn(3 * PANEL + 5, 10)), torch.randn(3 * PANEL + 5)),
    )
    for first, end in ((0, PANEL), (PANEL, 2 * PANEL), (PANEL, 3 * PANEL + 5), (2 * PANEL, 3 * PANEL + 1)):
        assert torch.equal(layer.forward_slice(x, first, end), layer(x)[:, first:end])


def say(model, cache=None):
    source = torch.randint(5, 97, (3, 11), generator=torch.Generator().manual_seed(2))
    return greedy_search(
        model,
        source,
        None,
        bos_id=1,
        eos_id=2,
        max_new_tokens=[12] * 3,
        min_new_tokens=12,
        cache=cache and Choice(cache),
    )


@DTYPES
@needs_kernels
@pytest.mark.parametrize("cache", ["static", "paged", "quantized"])
def test_a_model_says_the_same_by_our_kernels_and_by_torch(monkeypatch, cache, dtype):
    plain = build(CONFIG, seed=1).eval()
    fast = pack_model(copy.deepcopy(plain), linear_factory(dtype))
    assert sum(isinstance(part, PackedAttention) for part in fast.modules()) == 6
    ours = say(fast, cache)
    monkeypatch.setattr("polyhead.kernels.int_linear.load_kernels", lambda: None)
    monkeypatch.setattr("polyhead.kernels.attention.load_kernels", lambda: None)
    other = pack_model(copy.deepcopy(plain), linear_factory(dtype))
    assert any(isinstance(part, Int8LinearFallback) for part in other.modules())
    assert not any(isinstance(part, Int8Linear | PackedAttention) for part in other.modules())
    assert packed_dtype(fast) == packed_dtype(other) == dtype
    theirs = say(other, cache)
    assert [x.tokens for x in ours] == [x.tokens for x in theirs]
    # what lies between two whole numbers is rounded to either, as the last bit before it wants
    assert [x.log_prob for x in ours] == pytest.approx([x.log_prob for x in theirs], rel=5e-3)


@pytest.mark.parametrize(("dtype", "least", "most"), [("int8", 1e-4, 0.05), ("int4", 0.05, 0.4)])
def test_logits_are_near_those_of_the_model_that_was_trained(dtype, least, most):
    plain = build(CONFIG, seed=1).eval()
    source, target = torch.randint(5, 97, (4, 20)), torch.randint(5, 97, (4, 15))
    with torch.inference_mode():
        wanted, found = (
            model(source, target)
            for model in (plain, pack_model(copy.deepcopy(plain), linear_factory(dtype)))
        )
    off = (found - wanted).norm() / wanted.norm()
    assert least < off < most


@needs_kernels
def test_with_four_bits_the_head_has_eight():
    model = pack_model(build(CONFIG, seed=1).eval(), linear_factory("int4"))
    kept = {name: part.dtype for name, part in model.named_modules() if isinstance(part, Int8Linear)}
    assert {name: dtype for name, dtype in kept.items() if dtype == "int8"} == {"head.linear": "int8"}
    assert set(kept.values()) == {"int4", "int8"}
