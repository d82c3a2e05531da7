import pytest
import torch

from polyhead.config.model import AttentionShape, ModelConfig
from polyhead.models import build
from polyhead.nn.position.rope import Rope


def make_rope(dim, **options):
    return Rope(AttentionShape.from_sizes(dim, 1, max_len=16), **options)


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(
    ("dim", "theta", "fraction"),
    [(2, 1e4, 1.0), (8, 1e4, 1.0), (6, 50.0, 1.0), (8, 100.0, 0.5), (5, 1e4, 0.8)],
)
def test_pairs_are_rotated_as_complex_numbers(dim, theta, fraction, layout):
    """Features j and j + width/2, or 2j and 2j + 1; those beyond the fraction are not changed."""
    scheme, width = make_rope(dim, theta=theta, layout=layout, fraction=fraction), round(dim * fraction)
    x, pos = torch.randn(2, 3, 4, dim), torch.tensor([[0, 1, -1, 7], [3, 50, 2, 0]])
    pairs = x[..., :width].double().unflatten(-1, (2, -1) if layout == "half" else (-1, 2))
    real, imaginary = pairs.unbind(-2 if layout == "half" else -1)
    rates = torch.tensor([theta ** (-2 * j / width) for j in range(width // 2)], dtype=torch.double)
    z = torch.complex(real, imaginary) * torch.exp(1j * pos[:, None, :, None] * rates)
    expected = torch.stack([z.real, z.imag], -2 if layout == "half" else -1).flatten(-2)
    output = scheme.rotate(x, pos)
    torch.testing.assert_close(output[..., :width].double(), expected, rtol=0, atol=2e-5)
    assert torch.equal(output[..., width:], x[..., width:])
    torch.testing.assert_close(scheme.rotate(x, None), scheme.rotate(x, torch.arange(4).expand(2, 4)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_angles_are_fp32_in_every_dtype(dtype):
    scheme = make_rope(16).to(dtype)
    x, pos = torch.randn(1, 1, 3, 16).to(dtype), torch.tensor([[1000, 5001, 257]])
    output = scheme.rotate(x, pos)
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), make_rope(16).rotate(x.float(), pos), rtol=0, atol=4e-2)
    assert not list(scheme.state_dict())


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_gradients_and_memory_layouts(layout, fraction):
    scheme, pos = make_rope(8, layout=layout, fraction=fraction), torch.tensor([[0, 5, -1], [3, 2, 9]])
    x = torch.randn(2, 3, 2, 8, dtype=torch.double).transpose(1, 2).requires_grad_()  # as of split_heads
    assert torch.autograd.gradcheck(lambda x: scheme.rotate(x, pos), (x,))
    assert torch.autograd.gradgradcheck(lambda x: scheme.rotate(x, pos), (x,), fast_mode=True)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 3, 4, 8).to(dtype)
        copies = [x.permute(o).contiguous().permute(o) for o in ((0, 2, 1, 3), (3, 2, 1, 0), (0, 1, 3, 2))]
        copies.append(torch.randn(1 + x.numel()).to(dtype)[1:].view_as(x).copy_(x))  # not aligned
        for copy in copies:
            torch.testing.assert_close(scheme.rotate(copy, None), scheme.rotate(x, None))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"layout": "interleaved", "fraction": 0.5}], ids=str)
def test_compiled_model_has_the_same_gradients(options):
    sizes = {"vocab_size": 20, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 1, "dropout": 0.0}
    model = build(ModelConfig(**sizes, kind="decoder", position={"name": "rope", **options}), seed=1)
    tokens, results = torch.randint(0, 20, (2, 5)), []
    for call in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        logits = call(tokens)
        results.append((logits, *torch.autograd.grad(logits.square().mean(), [*model.parameters()])))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fraction", [0.25, 0.5])
@pytest.mark.parametrize("scaling", ["none", "linear", "yarn"])
def test_partial_rotation_equals_that_of_gpt_neox(fraction, scaling):
    transformers = pytest.importorskip("transformers")
    modeling = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    options = {"linear": {"factor": 2.0}, "yarn": {"factor": 2.0, "original_len": 256}}.get(scaling, {})
    rope = {"rope_type": "default" if scaling == "none" else scaling, "rope_theta": 10000.0}
    rope |= {k.replace("original_len", "original_max_position_embeddings"): v for k, v in options.items()}
    config = transformers.GPTNeoXConfig(
        hidden_size=64, num_attention_heads=2, rope_parameters=rope | {"partial_rotary_factor": fraction}
    )
    scheme = Rope(AttentionShape.from_sizes(64, 2), fraction=fraction, scaling=scaling, **options)
    q, pos = torch.randn(2, 2, 5, 32), torch.tensor([[0, 1, 2, 3, 4], [7, 400, 3, 0, 70]])
    expected, _ = modeling.apply_rotary_pos_emb(q, q, *modeling.GPTNeoXRotaryEmbedding(config)(q, pos))
    torch.testing.assert_close(scheme.rotate(q, pos), expected, rtol=0, atol=2e-4)
