"""An encoder with another width than its decoder."""

import pytest
import torch
from torch import nn

from polyhead import ModelConfig, build
from polyhead.core.errors import UserError

SIZES = {"vocab_size": 19, "d_model": 24, "n_heads": 3, "n_layers": 2, "max_len": 16, "dropout": 0}


def build_model(**changes):
    return build(ModelConfig(**{**SIZES, "tie_embeddings": "none", **changes}), seed=1).double().eval()


def load_attention(attention, width):
    """PyTorch's attention with these weights, to keys and values of a width of their own."""
    reference = nn.MultiheadAttention(24, 3, kdim=width, vdim=width, batch_first=True).double()
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(reference, f"{name}_weight").data = getattr(attention, name).weight.data
    biases = [getattr(attention, name).bias.data for name in ("q_proj", "k_proj", "v_proj")]
    reference.in_proj_bias.data = torch.cat(biases)
    reference.out_proj.load_state_dict(attention.o_proj.state_dict())
    return reference


def test_decoder_reads_an_encoder_of_another_width():
    """The decoder, layer by layer, around PyTorch's attention; the encoder as a model of its own."""
    model = build_model(encoder={"d_model": 16, "n_heads": 2, "d_ff": 20})
    nn.init.normal_(model.decoder.layers[0].cross.k_proj.bias)
    encoder = build_model(d_model=16, n_heads=2, d_ff=20)
    for part in ("encoder", "encoder_embedding"):
        getattr(encoder, part).load_state_dict(getattr(model, part).state_dict())
    source, target = torch.randint(5, 19, (2, 7)), torch.randint(5, 19, (2, 4))
    encoded = encoder.encoder(encoder.encoder_embedding(source))
    assert encoded.shape == (2, 7, 16) and model.encoder.layers[0].ffn.up_proj.out_features == 20
    x = model.decoder_embedding(target)
    for layer in model.decoder.layers:
        x = layer.attn_residual(x, layer.attn)
        attended, _ = load_attention(layer.cross, 16)(x, encoded, encoded)
        x = layer.cross_residual.norm(x + attended)
        x = layer.ffn_residual(x, layer.ffn)
    torch.testing.assert_close(model(source, target), model.head(x), rtol=0, atol=1e-6)


def test_sizes_of_the_encoder_follow_from_its_width():
    encoder = ModelConfig(**SIZES, encoder={"d_model": 12}, tie_embeddings="none").encoder
    expected = {"n_heads": 3, "n_kv_heads": 3, "head_dim": 4, "v_head_dim": 4, "d_ff": 48, "d_model": 12}
    assert encoder.model_dump(include=expected.keys()) == expected
    table = build_model(d_model=240, encoder={"d_model": 15}).encoder_embedding.token.weight
    assert float(table.detach().std()) == pytest.approx(15**-0.5, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": {"d_model": 16}}, "d_model .16. must be divisible by n_heads .3."),
        ({"encoder": {"d_model": 12}, "tie_embeddings": "all"}, "set tie_embeddings to target or none"),
        (
            {"encoder": {"vocab_size": 30}, "tie_embeddings": "inputs"},
            "own d_model or vocab_size, so the source",
        ),
        ({"encoder": {"d_model": 12}, "kind": "decoder"}, "the encoder of an encoder-decoder: remove it"),
        (
            {"encoder": {"d_model": 12}, "cross_attention": {"name": "softmax", "tie": "qk"}},
            "tie=qk requires an encoder as wide as the decoder: d_model=24",
        ),
    ],
)
def test_impossible_sizes_of_the_encoder_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        build_model(**changes)
