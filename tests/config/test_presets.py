import pytest

from polyhead import ModelConfig


def test_preset_has_published_sizes_and_may_be_changed():
    base = ModelConfig.model_validate({"preset": "base", "vocab_size": 10, "dropout": 0.2})
    assert (base.n_layers, base.decoder_layers, base.d_model, base.d_ff) == (6, 6, 512, 2048)
    assert (base.n_heads, base.head_dim, base.dropout) == (8, 64, 0.2)
    assert "preset" not in base.model_dump()
    with pytest.raises(ValueError, match="unknown preset 'bse'; did you mean 'base'"):
        ModelConfig.model_validate({"preset": "bse", "vocab_size": 10})
