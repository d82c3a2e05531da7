"""Tests of nn/position/rope_scaling.py."""

import pytest
import torch

from polyhead.config.model import AttentionShape
from polyhead.nn.position.rope import Rope

SCALED = [
    ({}, {"rope_type": "default"}),
    ({"scaling": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    *(
        (
            {"scaling": "yarn", "factor": factor, "original_len": length},
            {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length},
        )
        for factor, length in [(4.0, 2048), (2.0, 100), (1.0, 512), (16.0, 4)]
    ),
    *(
        (
            {"scaling": "llama3", "factor": factor, "original_len": length},
            {
                "rope_type": "llama3",
                "factor": factor,
                "original_max_position_embeddings": length,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
        )
        for factor, length in [(8.0, 8192), (2.0, 100), (32.0, 4)]
    ),
]


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize(("factor", "length"), [(32.0, 4096), (1.0, 512), (4.0, 7)])
@pytest.mark.parametrize("fraction", [1.0, 0.75])
@pytest.mark.parametrize("longer", [False, True])
def test_angles_of_longrope_are_those_of_hugging_face(factor, length, fraction, longer):
    """Short numbers up to the length of training, long ones where there is room for more."""
    transformers = pytest.importorskip("transformers")
    modeling = pytest.importorskip("transformers.models.phi3.modeling_phi3")
    pairs = int(32 * fraction) // 2
    short, long = (1 + torch.arange(pairs) / 7).tolist(), (2 + torch.arange(pairs) ** 1.5).tolist()
    theirs = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": short, "long_factor": long}
    config = transformers.Phi3Config(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=int(factor * length),
        original_max_position_embeddings=length, rope_parameters=theirs | {"partial_rotary_factor": fraction},
    )  # fmt: skip
    options = {"scaling": "longrope", "factor": factor, "original_len": length, "short": short, "long": long}
    shape = AttentionShape.from_sizes(64, 2, max_len=length + longer)
    scheme, embedding = Rope(shape, fraction=fraction, **options), modeling.Phi3RotaryEmbedding(config)
    q, pos = torch.randn(2, 2, 5, 32), torch.tensor([[0, 1, 2, 3, 4], [5, 2, 3, 0, length - (not longer)]])
    wanted, _ = modeling.apply_rotary_pos_emb(q, q, *embedding(q, pos))
    torch.testing.assert_close(scheme.inv_freq, embedding.inv_freq, rtol=1e-6, atol=1e-9)
    assert scheme.attention_factor == pytest.approx(embedding.attention_scaling, rel=1e-12)
    torch.testing.assert_close(scheme.rotate(q, pos), wanted, rtol=0, atol=5e-4)


def llama(options, theirs, dim, theta):
    """Rope, and that of Llama in Hugging Face Transformers, with a head of the same width."""
    transformers = pytest.importorskip("transformers")
    theirs = {"rope_theta": theta, **theirs}
    config = transformers.LlamaConfig(
        hidden_size=2 * dim, num_attention_heads=2, max_position_embeddings=64, rope_parameters=theirs
    )
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    scheme = Rope(AttentionShape.from_sizes(2 * dim, 2), theta=theta, **options)
    return scheme, config, modeling.LlamaRotaryEmbedding(config), modeling.apply_rotary_pos_emb


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize(("options", "theirs"), SCALED, ids=str)
@pytest.mark.parametrize(("dim", "theta"), [(8, 10000.0), (64, 500000.0), (128, 10000.0)])
def test_scaled_angles_are_those_of_hugging_face(options, theirs, dim, theta):
    scheme, _, embedding, apply = llama(options, theirs, dim, theta)
    torch.testing.assert_close(scheme.inv_freq, embedding.inv_freq, rtol=1e-6, atol=1e-9)
    assert scheme.attention_factor == pytest.approx(embedding.attention_scaling, rel=1e-12)
    q, pos = torch.randn(2, 2, 5, dim), torch.tensor([[0, 1, 2, 3, 4], [7, 900, 3, 0, 70]])
    wanted, _ = apply(q, q, *embedding(q, pos))
    torch.testing.assert_close(scheme.rotate(q, pos), wanted, rtol=0, atol=5e-4 if theta > 1e5 else 2e-4)


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize("factor", [1.0, 2.5, 8.0])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_the_larger_base_of_ntk_is_that_of_hugging_face(factor, fraction):
    """Theirs grows with the text: at factor 1 and ``factor`` times the length it is ours."""
    theirs = {"rope_type": "dynamic", "factor": 1.0, "partial_rotary_factor": fraction}
    options = {"scaling": "ntk", "factor": factor, "fraction": fraction}
    scheme, config, _, _ = llama(options, theirs, 64, 10000.0)
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    rates, _ = utils.ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=int(64 * factor))
    torch.testing.assert_close(scheme.inv_freq, rates, rtol=1e-6, atol=1e-9)
    slowest = 10000.0 ** (-(64 * fraction - 2) / (64 * fraction))
    assert float(scheme.inv_freq[0]) == 1
    assert float(scheme.inv_freq[-1]) == pytest.approx(slowest / factor, rel=1e-5)
