"""Rope against complex numbers in double precision, and against the scalings of Hugging Face Transformers."""

import pytest
import torch

from polyhead.config.model import AttentionShape, ModelConfig
from polyhead.core.errors import UserError
from polyhead.models import build
from polyhead.nn.position.rope import Rope
from polyhead.nn.validate_model import check_model


@pytest.mark.parametrize(("dim", "theta"), [(2, 10000.0), (8, 10000.0), (6, 50.0)])
def test_rope_multiplies_complex_numbers_by_unit_ones(dim, theta):
    """Feature j and feature j + dim/2 are the two parts of one number."""
    scheme = Rope(AttentionShape.from_sizes(dim, 1, max_len=16), theta=theta)
    x, pos = torch.randn(2, 3, 4, dim), torch.tensor([[0, 1, -1, 7], [3, 500, 2, 0]])
    z = torch.complex(x[..., : dim // 2].double(), x[..., dim // 2 :].double())
    rates = torch.tensor([theta ** (-2 * j / dim) for j in range(dim // 2)], dtype=torch.double)
    turned = z * torch.exp(1j * pos[:, None, :, None] * rates)
    wanted = torch.cat([turned.real, turned.imag], -1)
    torch.testing.assert_close(scheme.rotate(x, pos).double(), wanted, rtol=0, atol=2e-4)
    torch.testing.assert_close(scheme.rotate(x, None), scheme.rotate(x, torch.arange(4).expand(2, 4)))


def test_with_rope_a_product_depends_on_the_distance_alone():
    scheme = Rope(AttentionShape.from_sizes(8, 1, max_len=16))
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
    plain, other = (
        Rope(AttentionShape.from_sizes(16, 1, max_len=16)),
        Rope(AttentionShape.from_sizes(16, 1, max_len=16)).to(dtype),
    )
    x, pos = torch.randn(1, 1, 3, 16).to(dtype), torch.tensor([[1000, 5001, 257]])
    out = other.rotate(x, pos)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), plain.rotate(x.float(), pos), rtol=0, atol=4e-2)
    assert not list(other.state_dict())


def test_rope_wants_pairs_of_features_and_says_what_to_do():
    with pytest.raises(UserError, match=r"head_dim must be even for rope.* 5 .*nearest head_dim is 4 or 6"):
        check_model(ModelConfig(vocab_size=9, d_model=10, n_heads=2, position="rope"))
    with pytest.raises(UserError, match=r"nearest head_dim is 2 or 4$"):
        Rope(AttentionShape.from_sizes(3, 1, max_len=16))


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize(("dim", "fraction"), [(2, 1.0), (8, 1.0), (8, 0.5), (10, 0.4), (5, 0.8)])
def test_interleaved_pairs_are_complex_numbers_side_by_side(dim, fraction):
    """Feature 2j and feature 2j + 1 are one number; what is beyond the fraction stays as it is."""
    scheme = Rope(AttentionShape.from_sizes(dim, 1), theta=100.0, layout="interleaved", fraction=fraction)
    x, pos = torch.randn(2, 3, 4, dim), torch.tensor([[0, 1, -1, 7], [3, 50, 2, 0]])
    width = round(dim * fraction)
    z = torch.view_as_complex(x[..., :width].double().unflatten(-1, (-1, 2)).contiguous())
    rates = torch.tensor([100.0 ** (-2 * j / width) for j in range(width // 2)], dtype=torch.double)
    turned = torch.view_as_real(z * torch.exp(1j * pos[:, None, :, None] * rates)).flatten(-2)
    out = scheme.rotate(x, pos)
    torch.testing.assert_close(out[..., :width].double(), turned, rtol=0, atol=2e-5)
    assert torch.equal(out[..., width:], x[..., width:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_where_numbers_lie_in_memory_does_not_matter(layout, fraction, dtype):
    scheme = Rope(AttentionShape.from_sizes(8, 1), layout=layout, fraction=fraction)
    x = torch.randn(2, 3, 4, 8).to(dtype)
    wanted = scheme.rotate(x, None)
    for order in ((0, 2, 1, 3), (3, 2, 1, 0), (0, 1, 3, 2)):
        other = x.permute(order).contiguous().permute(order)
        torch.testing.assert_close(scheme.rotate(other, None), wanted)
    shifted = torch.randn(1 + x.numel()).to(dtype)[1:].view_as(x).copy_(x)
    torch.testing.assert_close(scheme.rotate(shifted, None), wanted)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_the_layouts_are_one_scheme_with_features_in_another_order(fraction):
    half = Rope(AttentionShape.from_sizes(12, 1), fraction=fraction)
    interleaved = Rope(AttentionShape.from_sizes(12, 1), fraction=fraction, layout="interleaved")
    x, width = torch.randn(2, 1, 5, 12), round(12 * fraction)
    order = torch.arange(width).view(-1, 2).T.flatten()  # even features, then odd ones
    order = torch.cat([order, torch.arange(width, 12)])
    torch.testing.assert_close(half.rotate(x[..., order], None), interleaved.rotate(x, None)[..., order])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_gradients_of_rope_are_those_of_finite_differences(layout, fraction):
    scheme = Rope(AttentionShape.from_sizes(8, 1), layout=layout, fraction=fraction)
    x = (
        torch.randn(2, 3, 2, 8, dtype=torch.double).transpose(1, 2).requires_grad_()
    )  # as split_heads gives it
    pos = torch.tensor([[0, 5, -1], [3, 2, 9]])
    assert torch.autograd.gradcheck(lambda x: scheme.rotate(x, pos), (x,))
    assert torch.autograd.gradgradcheck(lambda x: scheme.rotate(x, pos), (x,))


@pytest.mark.parametrize("options", [{}, {"layout": "interleaved", "fraction": 0.5}], ids=str)
def test_a_compiled_model_turns_by_the_same_angles(options):
    sizes = {"vocab_size": 20, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "dropout": 0.0}
    model = build(ModelConfig(**sizes, kind="decoder", position={"name": "rope", **options}), seed=1)
    found, tokens = [], torch.randint(0, 20, (2, 5))
    for call in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        logits = call(tokens)
        found.append((logits, *torch.autograd.grad(logits.square().mean(), [*model.parameters()])))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fraction", [0.25, 0.5])
@pytest.mark.parametrize("scaling", ["none", "linear", "yarn"])
def test_a_part_of_the_head_turns_as_in_gpt_neox(fraction, scaling):
    modeling = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    transformers = pytest.importorskip("transformers")
    options = {"linear": {"factor": 2.0}, "yarn": {"factor": 2.0, "original_len": 256}}.get(scaling, {})
    theirs = {"rope_type": "default" if scaling == "none" else scaling, "rope_theta": 10000.0, **options}
    if "original_len" in options:
        theirs["original_max_position_embeddings"] = theirs.pop("original_len")
    theirs["partial_rotary_factor"] = fraction
    config = transformers.GPTNeoXConfig(hidden_size=64, num_attention_heads=2, rope_parameters=theirs)
    scheme = Rope(AttentionShape.from_sizes(64, 2), fraction=fraction, scaling=scaling, **options)
    q, pos = torch.randn(2, 2, 5, 32), torch.tensor([[0, 1, 2, 3, 4], [7, 400, 3, 0, 70]])
    wanted, _ = modeling.apply_rotary_pos_emb(q, q, *modeling.GPTNeoXRotaryEmbedding(config)(q, pos))
    torch.testing.assert_close(scheme.rotate(q, pos), wanted, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"theta": 1.0}, "theta of rope is 1.0.* above 1"),
        ({"factor": 2.0}, "factor of rope is 2.0 with scaling 'none'"),
        ({"factor": 0.5, "scaling": "linear"}, "factor of rope is 0.5.* at least 1"),
        ({"scaling": "yarn", "factor": 2.0}, "original_len of rope is null: scaling 'yarn' requires"),
        ({"scaling": "ntk", "factor": 2.0, "original_len": 9}, "original_len of rope is 9.* 'ntk'"),
        ({"scaling": "yarn", "factor": 2.0, "original_len": 0}, "at least 1 tokens, got 0"),
        (
            {"scaling": "longrope", "original_len": 1, "short": [1.0] * 4, "long": [1.0] * 4},
            "at least 2 tokens, got 1",
        ),
        (
            {"scaling": "longrope", "original_len": 9, "long": [1.0] * 4},
            "short of rope is null: .* a number for each pair",
        ),
        ({"long": [1.0] * 4}, r"long of rope is \[1.0.*the others ignore it; scaling is 'none'"),
        (
            {"scaling": "longrope", "original_len": 9, "short": [1.0] * 4, "long": [1.0] * 3},
            "long of rope .* expected 4 numbers above 0",
        ),
        (
            {"scaling": "longrope", "original_len": 9, "short": [1.0, 0, 1, 1], "long": [1.0] * 4},
            "short of rope .* expected 4 numbers",
        ),
        ({"scaling": "ntk", "factor": 2.0, "fraction": 0.25}, "use 'linear'"),
        ({"fraction": 0.0}, "above 0 and at most 1, got 0.0"),
        ({"fraction": 0.4}, "0.4 of head_dim 8 is 3 features.* nearest fraction is 0.5"),
        ({"fraction": 0.1}, "is 0 features.* nearest fraction is 0.25"),
    ],
)
def test_options_that_make_no_sense_are_user_errors(options, said):
    with pytest.raises(UserError, match=said):
        Rope(AttentionShape.from_sizes(8, 1), **options)
    with pytest.raises(UserError, match=said):
        check_model(ModelConfig(vocab_size=9, d_model=8, n_heads=1, position={"name": "rope", **options}))
