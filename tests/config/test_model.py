import pytest

from polyhead import Choice, ModelConfig, build
from polyhead.config.model import AttentionShape, ModelSpec
from polyhead.config.recipe import TokenizerConfig
from polyhead.nn.validate_model import check_model

SMALL = {"vocab_size": 10, "d_model": 16, "n_heads": 4, "n_layers": 1, "max_len": 8}


def test_missing_sizes_are_derived_or_of_the_paper():
    config = ModelConfig(vocab_size=37000)
    assert (config.d_model, config.d_ff, config.n_heads, config.head_dim) == (512, 2048, 8, 64)
    assert (config.n_layers, config.n_decoder_layers, config.dropout, config.norm_first) == (6, 6, 0.1, False)
    sizes = {"vocab_size": 10, "d_model": 64, "n_heads": 4}
    config = ModelConfig(**sizes, n_layers=3)
    assert (config.n_kv_heads, config.d_ff, config.n_decoder_layers) == (4, 256, 3)
    config = ModelConfig(**sizes, n_kv_heads=1, d_ff=100, n_decoder_layers=1)
    assert (config.kv_heads, config.d_ff, config.n_decoder_layers) == (1, 100, 1)
    fields = {"d_model": 64, "n_heads": 4, "norm": Choice("rmsnorm")}
    assert ModelSpec(**fields).with_vocabulary(99) == ModelConfig(vocab_size=99, **fields)
    with pytest.raises(ValueError, match="frozen"):
        config.d_model = 3
    config = ModelConfig(vocab_size=10, position=Choice("sinusoidal", base=5e5), n_kv_heads=2)
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    options = {"base": 500000.0, "layout": "interleaved", "endpoint": False, "offset": 0}
    assert config.model_dump(mode="json")["position"] == {"name": "sinusoidal"} | options
    from_sizes = AttentionShape.from_sizes
    assert from_sizes(32, 4) == AttentionShape(32, 4, 4, 8, 8, 1024, False)
    shape = from_sizes(32, 4, 2, head_dim=6, max_len=9, causal=True)
    assert shape == AttentionShape(32, 4, 2, 6, 6, 9, True)
    assert from_sizes(32, 4, v_head_dim=3) == AttentionShape(32, 4, 4, 8, 3, 1024, False)


@pytest.mark.parametrize(
    ("fields", "widths"),
    [
        ({}, (4, 4)),
        ({"head_dim": 6}, (6, 6)),
        ({"v_head_dim": 3}, (4, 3)),
        ({"head_dim": 6, "v_head_dim": 3}, (6, 3)),
        ({"d_model": 18, "head_dim": 5, "v_head_dim": 5}, (5, 5)),
    ],
)
def test_head_widths_are_those_of_the_projections(fields, widths):
    config = ModelConfig(**{**SMALL, "n_kv_heads": 2, **fields})
    C, (k, v) = config.d_model, widths
    assert (config.head_dim, config.v_head_dim) == widths
    assert config.attention_shape(True) == AttentionShape(C, 4, 2, k, v, 8, True)
    attention = build(config, seed=1).encoder.layers[0].attn
    sizes = [tuple(getattr(attention, f"{name}_proj").weight.shape) for name in "qkvo"]
    assert sizes == [(4 * k, C), (2 * k, C), (2 * v, C), (C, 4 * v)]
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config


SELF, CROSS = {"decoder_attention": 2}, {"cross_attention": 3}


@pytest.mark.parametrize("scales", [{}, SELF, CROSS, SELF | CROSS])
def test_attentions_and_blocks_default_to_the_encoder(scales):
    expected = [1, scales.get("decoder_attention", 1), scales.get("cross_attention", 1)]
    scales = {"attention": 1} | scales
    parts = {key: Choice("softmax", scale=float(scale)) for key, scale in scales.items()}
    config = ModelConfig(**SMALL, **parts)
    model = build(config, seed=1)
    encoder, decoder = model.encoder.layers[0], model.decoder.layers[0]
    assert [encoder.attn.scale, decoder.attn.scale, decoder.cross.scale] == expected
    fields = config.model_dump(mode="json")
    for key in ("decoder_attention", "cross_attention"):
        assert (fields[key] is None) == (key not in scales)
    for key, encoder in (("block", "RecurrentBlock"), ("decoder_block", "Block")):
        model = build(ModelConfig(**SMALL, **{key: "gru"}), seed=1)
        blocks = [type(stack.layers[0]).__name__ for stack in (model.encoder, model.decoder)]
        assert blocks == [encoder, "RecurrentBlock"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 2**31 - 1}, "out of range: expected at most 1048576"),
        ({"n_heads": 2**31 - 1, "head_dim": 1, "n_kv_heads": 3}, "expected at most 1048576"),
        ({"n_layers": 10**9}, "expected at most 10000"),
        ({"feed_forward": {"name": "moe", "n_experts": 10**7}}, "n_experts .* expected at most 10000"),
    ],
)
def test_sizes_beyond_the_limits_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        check_model(ModelConfig(**{"vocab_size": 10, **fields}))
    with pytest.raises(ValueError, match="expected at most 4194304"):  # more aborted the process
        TokenizerConfig(vocab_size=10**9)
    check_model(ModelConfig(vocab_size=10, max_len=2**31 - 1, position="sinusoidal"))  # without its table
