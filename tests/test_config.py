"""What a model's configuration derives, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from polyhead import Choice, ModelConfig
from polyhead.config import ModelSection


def test_defaults_are_the_base_model_of_the_paper() -> None:
    config = ModelConfig(vocab_size=37000)
    assert (config.d_model, config.d_ff, config.n_heads, config.head_dim) == (512, 2048, 8, 64)
    assert (config.n_layers, config.n_decoder_layers, config.dropout, config.norm_first) == (6, 6, 0.1, False)


def test_sizes_follow_from_others_unless_given() -> None:
    derived = ModelConfig(vocab_size=10, d_model=64, n_heads=4, n_layers=3)
    assert (derived.n_kv_heads, derived.d_ff, derived.n_decoder_layers) == (4, 256, 3)
    given = ModelConfig(vocab_size=10, d_model=64, n_heads=4, n_kv_heads=1, d_ff=100, n_decoder_layers=1)
    assert (given.kv_heads, given.d_ff, given.n_decoder_layers) == (1, 100, 1)


def test_a_written_config_reads_back_the_same() -> None:
    config = ModelConfig(vocab_size=10, position=Choice("rope", theta=5e5), n_kv_heads=2)
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    assert config.model_dump(mode="json")["position"] == {"name": "rope", "theta": 500000.0}


def test_a_section_becomes_a_config_with_its_vocabulary() -> None:
    section = ModelSection(d_model=64, n_heads=4, norm=Choice("rmsnorm"))
    config = ModelConfig(vocab_size=99, d_model=64, n_heads=4, norm=Choice("rmsnorm"))
    assert section.with_vocabulary(99) == config


def test_a_config_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        ModelConfig(vocab_size=10).d_model = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"d_model": 100}, r"d_model \(100\) must be divisible by n_heads \(8\); the nearest is 96"),
        ({"d_model": 3, "n_heads": 8}, r"d_model \(3\) must be divisible by n_heads \(8\); the nearest is 8"),
        ({"n_kv_heads": 3}, r"n_kv_heads \(3\) must divide n_heads \(8\): one of 1, 2, 4, 8"),
        ({"n_kv_heads": 16}, r"n_kv_heads \(16\) must divide n_heads \(8\)"),
        ({"position": "ropee"}, "unknown position 'ropee'; did you mean 'rope'"),
        ({"norm": "layer_norm"}, "unknown norm 'layer_norm'; did you mean 'layernorm'"),
        ({"vocab_size": 0}, "greater than 0"),
        ({"dropout": 1.0}, "less than 1"),
        ({"d_modle": 3}, "d_modle"),
        ({"tie_embeddings": "some"}, "'all', 'target' or 'none'"),
    ],
)
def test_what_cannot_be_built_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{"vocab_size": 10, **given})


def test_a_preset_gives_the_sizes_of_the_literature_and_what_is_given_beside_it_counts():
    base = ModelConfig.model_validate({"preset": "base", "vocab_size": 10, "dropout": 0.2})
    sizes = (
        base.n_layers,
        base.decoder_layers,
        base.d_model,
        base.d_ff,
        base.n_heads,
        base.head_dim,
        base.dropout,
    )
    assert sizes == (6, 6, 512, 2048, 8, 64, 0.2)
    assert "preset" not in base.model_dump()
    with pytest.raises(ValueError, match="unknown preset 'bse'; did you mean 'base'"):
        ModelConfig.model_validate({"preset": "bse", "vocab_size": 10})
