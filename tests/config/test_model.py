"""What a model's configuration derives, and what it refuses."""

from __future__ import annotations

import time
from typing import Any

import pytest

from polyhead import Choice, ModelConfig, build
from polyhead.config.model import AttentionShape, ModelSpec
from polyhead.models import Seq2Seq
from polyhead.nn.validate_model import check_model

SMALL: dict[str, Any] = {"vocab_size": 10, "d_model": 16, "n_heads": 4, "n_layers": 1, "max_len": 8}


def test_defaults_are_the_base_model_of_the_paper() -> None:
    config = ModelConfig(vocab_size=37000)
    assert (config.d_model, config.d_ff, config.n_heads, config.head_dim) == (512, 2048, 8, 64)
    assert (config.n_layers, config.n_decoder_layers, config.dropout, config.norm_first) == (6, 6, 0.1, False)


def test_sizes_follow_from_others_unless_given() -> None:
    derived = ModelConfig(vocab_size=10, d_model=64, n_heads=4, n_layers=3)
    assert (derived.n_kv_heads, derived.d_ff, derived.n_decoder_layers) == (4, 256, 3)
    given = ModelConfig(vocab_size=10, d_model=64, n_heads=4, n_kv_heads=1, d_ff=100, n_decoder_layers=1)
    assert (given.kv_heads, given.d_ff, given.n_decoder_layers) == (1, 100, 1)


@pytest.mark.parametrize(
    ("given", "widths"),
    [
        ({}, (4, 4)),
        ({"head_dim": 6}, (6, 6)),
        ({"v_head_dim": 3}, (4, 3)),
        ({"head_dim": 6, "v_head_dim": 3}, (6, 3)),
        ({"d_model": 18, "head_dim": 5, "v_head_dim": 5}, (5, 5)),
    ],
)
def test_the_widths_of_heads_follow_from_the_model_unless_given(
    given: dict[str, Any], widths: tuple[int, int]
) -> None:
    config = ModelConfig(**{**SMALL, "n_kv_heads": 2, **given})
    C = config.d_model
    assert (config.head_dim, config.v_head_dim) == widths
    assert config.attention_shape(True) == AttentionShape(C, 4, 2, *widths, 8, True)
    attn = build(config, seed=1).encoder.layers[0].attn
    sizes = [tuple(getattr(attn, f"{p}_proj").weight.shape) for p in "qkvo"]
    assert sizes == [(4 * widths[0], C), (2 * widths[0], C), (2 * widths[1], C), (C, 4 * widths[1])]
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config


def test_a_shape_is_the_usual_one_unless_said_otherwise() -> None:
    assert AttentionShape.from_sizes(32, 4) == AttentionShape(32, 4, 4, 8, 8, 1024, False)
    assert AttentionShape.from_sizes(32, 4, 2, head_dim=6, max_len=9, causal=True) == AttentionShape(
        32, 4, 2, 6, 6, 9, True
    )
    assert AttentionShape.from_sizes(32, 4, v_head_dim=3) == AttentionShape(32, 4, 4, 8, 3, 1024, False)


def scales(model: Seq2Seq) -> list[float]:
    """The scale of the encoder's, the decoder's and the crossing attention: so they can be told apart."""
    encoder, decoder = model.encoder.layers[0], model.decoder.layers[0]
    return [encoder.attn.scale, decoder.attn.scale, decoder.cross.scale]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, [1, 1, 1]),
        ({"decoder_attention": 2}, [1, 2, 1]),
        ({"cross_attention": 3}, [1, 1, 3]),
        ({"decoder_attention": 2, "cross_attention": 3}, [1, 2, 3]),
    ],
)
def test_each_attention_may_be_another_and_is_as_the_encoders_if_not(
    given: dict[str, int], wanted: list[float]
) -> None:
    chosen = {key: Choice("softmax", scale=float(scale)) for key, scale in ({"attention": 1} | given).items()}
    config = ModelConfig(**SMALL, **chosen)
    assert scales(build(config, seed=1)) == wanted
    written = config.model_dump(mode="json")
    assert [key for key in ("decoder_attention", "cross_attention") if written[key] is None] == [
        key for key in ("decoder_attention", "cross_attention") if key not in given
    ]


def test_the_decoder_may_have_another_block() -> None:
    both = build(ModelConfig(**SMALL, block="gru"), seed=1)
    one = build(ModelConfig(**SMALL, decoder_block="gru"), seed=1)
    kinds = [[type(stack.layers[0]).__name__ for stack in (m.encoder, m.decoder)] for m in (both, one)]
    assert kinds == [["RecurrentBlock", "RecurrentBlock"], ["Block", "RecurrentBlock"]]


def test_a_written_config_reads_back_the_same() -> None:
    config = ModelConfig(vocab_size=10, position=Choice("sinusoidal", base=5e5), n_kv_heads=2)
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    assert config.model_dump(mode="json")["position"] == {
        "name": "sinusoidal", "base": 500000.0, "layout": "interleaved", "endpoint": False, "offset": 0,
    }  # fmt: skip


def test_a_section_becomes_a_config_with_its_vocabulary() -> None:
    section = ModelSpec(d_model=64, n_heads=4, norm=Choice("rmsnorm"))
    config = ModelConfig(vocab_size=99, d_model=64, n_heads=4, norm=Choice("rmsnorm"))
    assert section.with_vocabulary(99) == config


def test_a_config_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        ModelConfig(vocab_size=10).d_model = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"d_model": 2**31 - 1}, "out of range: should be less than or equal to 1048576"),
        ({"n_heads": 2**31 - 1, "head_dim": 1, "n_kv_heads": 3}, "less than or equal to 1048576"),
        ({"n_layers": 10**9}, "less than or equal to 10000"),
        (
            {"feed_forward": {"name": "moe", "n_experts": 10**7}},
            "n_experts .* must be at most 10,000, not 10,000,000",
        ),
        ({"max_len": 2**31 - 1, "position": "sinusoidal"}, None),  # a table is of the model, not of its trial
    ],
)
def test_sizes_beyond_reason_are_answered_soon(given: dict[str, Any], message: str | None) -> None:
    start, settings = time.perf_counter(), {"vocab_size": 10, **given}
    if message is None:
        check_model(ModelConfig(**settings))
    else:
        with pytest.raises(ValueError, match=message):
            check_model(ModelConfig(**settings))
    assert time.perf_counter() - start < 5
