import pytest
import torch
import torch.nn.functional as F
from tests.models.encoders_helpers import SIZES, make_encoder

from polyhead.config.model import ModelConfig
from polyhead.models import CausalLM, build

TOKENS = torch.tensor([[4, 7, 2, 9, 5], [3, 6, 8, 1, 1]])
POS = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]])
SEGMENTS = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
CLASSES = ["a", "b"]


@pytest.mark.parametrize(
    ("head_transform_bias", "feed_forward", "has_bias"),
    [(None, "gelu", True), (None, "swiglu", False), (True, "swiglu", True), (False, "gelu", False)],
)
def test_head_transform_bias_defaults_to_feed_forward(head_transform_bias, feed_forward, has_bias):
    parts = {"head_transform_bias": head_transform_bias, "feed_forward": feed_forward}
    for linear in (make_encoder(**parts).transform, make_encoder(**parts, labels=CLASSES).pooler.proj):
        assert (linear.bias is not None) == has_bias


def test_embeddings_add_positions_and_segments():
    parts = {"embedding_norm": True, "scale_embedding": False}
    e = make_encoder(position="learned", n_segments=2, **parts).encoder.embedding
    x = F.embedding(TOKENS, e.token.weight) + e.position.weight[:5] + F.embedding(SEGMENTS, e.segment.weight)
    expected = F.layer_norm(x, (8,), e.norm.weight, e.norm.bias)
    torch.testing.assert_close(e(TOKENS, None, SEGMENTS), expected)
    assert torch.equal(e(TOKENS), e(TOKENS, None, torch.zeros_like(TOKENS)))
    assert not torch.allclose(e(TOKENS), expected)
    assert make_encoder(d_embedding=6, lm_head=False)(TOKENS, POS).shape == (2, 5, 8)
    assert make_encoder(d_embedding=6, labels=CLASSES).classifier.in_features == 8
    for position in ("rope", "t5", "shaw", "alibi"):
        assert make_encoder(d_embedding=3, position=position)(TOKENS, POS).shape == (2, 5, 13)


@pytest.mark.parametrize(("position", "width"), [("learned", 6), ("sinusoidal", 8), ("learned", 10)])
def test_d_embedding_is_projected_to_d_model(width, position):
    """Embeddings and the head have that width (Lan et al., 2019, sec. 3.1)."""
    parts = {"n_segments": 2, "embedding_norm": True, "lm_head_bias": True}
    model = make_encoder(d_embedding=width, position=position, **parts)
    e = model.encoder.embedding
    table = e.position.weight if position == "learned" else e.position.table
    x = F.embedding(TOKENS, e.token.weight) * width**0.5 + table[:5]
    x = F.layer_norm(x + F.embedding(SEGMENTS, e.segment.weight), (width,), e.norm.weight, e.norm.bias)
    expected = x @ e.proj.weight.T + e.proj.bias
    assert expected.shape == (2, 5, 8)
    torch.testing.assert_close(e(TOKENS, None, SEGMENTS), expected)
    h = F.gelu(model.transform(model.encoder.stack(expected)))
    h = F.layer_norm(h, (width,), model.transform_norm.weight, model.transform_norm.bias)
    logits = h @ e.token.weight.T + model.head.bias
    torch.testing.assert_close(model(TOKENS, None, SEGMENTS), logits, rtol=1e-4, atol=1e-4)
    assert model.features(TOKENS, POS).shape == (2, 5, width)
    assert make_encoder(d_embedding=width, tie_embeddings="none").head.weight.shape == (13, width)


def test_embedding_norm_and_layer_pattern():
    model = make_encoder(embedding_norm="first", norm_first=True, position="rope")
    layers, e = model.encoder.stack.layers, model.encoder.embedding
    x = F.layer_norm(e.token(TOKENS) * e.scale, (8,), e.norm.weight, e.norm.bias)
    x = x + layers[0].attn(x, None, None)
    x = layers[0].ffn_residual(x, layers[0].ffn, None)
    torch.testing.assert_close(model.encoder(TOKENS), model.encoder.stack.final_norm(layers[1](x)))
    both_norms = make_encoder(norm_first=True, embedding_norm=True)
    n_first, n_both = (sum(p.numel() for p in m.parameters()) for m in (model, both_norms))
    assert n_both == 16 + n_first
    window = {"attention": {"name": "softmax", "window": 2}, "position": {"name": "rope", "theta": 50.0}}
    changes = {"kind": "decoder", "n_layers": 4, "position": "rope", "layer_pattern": [window, {}]}
    config = ModelConfig(**SIZES | changes)
    model = build(config, seed=1).eval()
    assert isinstance(model, CausalLM)
    windows = [layer.attn.window and layer.attn.window.size for layer in model.stack.layers]
    assert windows == [2, None, 2, None]
    assert [layer.attn.position.theta for layer in model.stack.layers] == [50.0, 1e4, 50.0, 1e4]
    assert ModelConfig.model_validate(config.model_dump()) == config
    for i, layer in enumerate(model.stack.layers):
        x = torch.randn(1, 6, 8, requires_grad=True)
        (layer(x)[0, 5] * torch.arange(8.0)).sum().backward()  # a plain sum over a norm is constant
        is_visible = (x.grad[0].abs().sum(-1) > 0).tolist()
        assert is_visible == ([False] * 4 + [True] * 2 if i % 2 == 0 else [True] * 6)
