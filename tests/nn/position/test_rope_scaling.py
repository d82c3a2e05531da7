import pytest
import torch

from polyhead.config.model import AttentionShape
from polyhead.nn.position.rope import Rope

transformers = pytest.importorskip("transformers")
llama = pytest.importorskip("transformers.models.llama.modeling_llama")

FREQUENCY_FACTORS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS = [
    ({}, {"rope_type": "default"}),
    ({"scaling": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    *(
        (
            {"scaling": name, "factor": factor, "original_len": length},
            {"rope_type": name, "factor": factor, "original_max_position_embeddings": length, **options},
        )
        for name, options, sizes in (
            ("yarn", {}, [(4.0, 2048), (2.0, 100), (1.0, 512), (16.0, 4)]),
            ("llama3", FREQUENCY_FACTORS, [(8.0, 8192), (2.0, 100), (32.0, 4)]),
        )
        for factor, length in sizes
    ),
]


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize(("factor", "length"), [(32.0, 4096), (1.0, 512), (4.0, 7)])
@pytest.mark.parametrize("fraction", [1.0, 0.75])
@pytest.mark.parametrize("longer", [False, True])
def test_longrope_equals_that_of_phi3(factor, length, fraction, longer):
    modeling = pytest.importorskip("transformers.models.phi3.modeling_phi3")
    pairs = int(32 * fraction) // 2
    short, long = (1 + torch.arange(pairs) / 7).tolist(), (2 + torch.arange(pairs) ** 1.5).tolist()
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": short, "long_factor": long}
    config = transformers.Phi3Config(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=int(factor * length),
        original_max_position_embeddings=length, rope_parameters=rope | {"partial_rotary_factor": fraction},
    )  # fmt: skip
    options = {"scaling": "longrope", "factor": factor, "original_len": length, "short": short, "long": long}
    shape = AttentionShape.from_sizes(64, 2, max_len=length + longer)
    scheme, embedding = Rope(shape, fraction=fraction, **options), modeling.Phi3RotaryEmbedding(config)
    q, pos = torch.randn(2, 2, 5, 32), torch.tensor([[0, 1, 2, 3, 4], [5, 2, 3, 0, length - (not longer)]])
    assert_equal(scheme, embedding, modeling, q, pos, 5e-4)


def assert_equal(scheme, embedding, modeling, q, pos, atol):
    expected, _ = modeling.apply_rotary_pos_emb(q, q, *embedding(q, pos))  # updates embedding.inv_freq
    torch.testing.assert_close(scheme.inv_freq, embedding.inv_freq, rtol=1e-6, atol=1e-9)
    assert scheme.attention_factor == pytest.approx(embedding.attention_scaling, rel=1e-12)
    torch.testing.assert_close(scheme.rotate(q, pos), expected, rtol=0, atol=atol)


def make_llama_config(rope, dim, theta):
    sizes = {"hidden_size": 2 * dim, "num_attention_heads": 2, "max_position_embeddings": 64}
    return transformers.LlamaConfig(**sizes, rope_parameters={"rope_theta": theta, **rope})


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize(("options", "rope"), SCALINGS, ids=str)
@pytest.mark.parametrize(("dim", "theta"), [(8, 10000.0), (64, 500000.0), (128, 10000.0)])
def test_scaled_angles_equal_those_of_llama(options, rope, dim, theta):
    scheme = Rope(AttentionShape.from_sizes(2 * dim, 2), theta=theta, **options)
    embedding = llama.LlamaRotaryEmbedding(make_llama_config(rope, dim, theta))
    q, pos = torch.randn(2, 2, 5, dim), torch.tensor([[0, 1, 2, 3, 4], [7, 900, 3, 0, 70]])
    assert_equal(scheme, embedding, llama, q, pos, 5e-4 if theta > 1e5 else 2e-4)


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize("factor", [1.0, 2.5, 8.0])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_ntk_base_equals_that_of_transformers(factor, fraction):
    """Its base grows with the text: factor 1 with ``factor`` times the length is the fixed one."""
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    rope = {"rope_type": "dynamic", "factor": 1.0, "partial_rotary_factor": fraction}
    scheme = Rope(AttentionShape.from_sizes(128, 2), scaling="ntk", factor=factor, fraction=fraction)
    config = make_llama_config(rope, 64, 10000.0)
    rates, _ = utils.ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=int(64 * factor))
    torch.testing.assert_close(scheme.inv_freq, rates, rtol=1e-6, atol=1e-9)
    slowest = 10000.0 ** (-(64 * fraction - 2) / (64 * fraction))
    assert float(scheme.inv_freq[0]) == 1
    assert float(scheme.inv_freq[-1]) == pytest.approx(slowest / factor, rel=1e-5)
