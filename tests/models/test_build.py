import pytest
import torch

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.models import Seq2Seq, preset_config


def count(config):
    with torch.device("meta"):
        return sum(p.numel() for p in Seq2Seq(config).parameters())


def formula(c):
    """Encoder layer: attention 4H^2 + 4H, feed-forward 2HF + F + H, two norms 4H; a decoder layer has one
    more attention and norm. With F = 4H these are 12H^2 + 13H and 16H^2 + 19H."""
    H, F, V = c.d_model, c.d_ff, c.vocab_size
    attention, ffn, norm = 4 * H * H + 4 * H, 2 * H * F + F + H, 2 * H
    layers = c.n_layers * (attention + ffn + 2 * norm) + c.decoder_layers * (2 * attention + ffn + 3 * norm)
    return layers + V * H * {"all": 1, "target": 2, "none": 3}[c.tie_embeddings] + 2 * norm * c.norm_first


@pytest.mark.parametrize("tying", ["all", "target", "none"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("name", ["tiny", "base", "big"])
def test_parameters_follow_the_closed_form(name, norm_first, tying):
    for changes in ({}, {"n_decoder_layers": 1}):
        config = preset_config(name, 1000, norm_first=norm_first, tie_embeddings=tying, **changes)
        assert count(config) == formula(config)


def test_base_is_the_base_model_of_the_paper():
    """6 + 6 layers, d_model 512, d_ff 2048, 8 heads of 64, about 65 million parameters with 37,000 tokens."""
    base = preset_config("base", 37_000)
    sizes = base.n_layers, base.decoder_layers, base.d_model, base.d_ff, base.n_heads, base.head_dim
    assert sizes == (6, 6, 512, 2048, 8, 64)
    H = 512
    assert count(base) == 6 * (12 * H * H + 13 * H) + 6 * (16 * H * H + 19 * H) + 37_000 * H == 63_082_496
    assert base == ModelConfig(vocab_size=37_000)
    big = preset_config("big", 37_000)
    assert (big.d_model, big.d_ff, big.n_heads, big.head_dim, big.dropout) == (1024, 4096, 16, 64, 0.3)
    assert count(big) == pytest.approx(213e6, rel=0.02) and preset_config("tiny", 10, d_ff=64).d_ff == 64
    with pytest.raises(UserError, match="unknown preset 'bas'; did you mean 'base'"):
        preset_config("bas", 10)
