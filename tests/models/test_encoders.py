"""Encoders for masked tokens, classes and vectors against the same numbers computed by other means."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.models import CausalLM, Classifier, MaskedLM, SentenceEncoder, build

SIZES = {
    "kind": "encoder",
    "vocab_size": 13,
    "d_model": 8,
    "n_heads": 2,
    "n_layers": 2,
    "max_len": 12,
    "dropout": 0.0,
}
TOKENS = torch.tensor([[4, 7, 2, 9, 5], [3, 6, 8, 1, 1]])
POS = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]])


def made(**changes):
    model = build(ModelConfig(**{**SIZES, **changes}), seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.eval()


def test_the_config_says_what_an_encoder_is_for():
    assert isinstance(made(), MaskedLM)
    assert isinstance(made(labels=["a", "b"]), Classifier)
    assert isinstance(made(head=False), SentenceEncoder)


def test_embeddings_are_tokens_positions_and_segments_under_a_norm():
    model = made(position="learned", segments=2, embedding_norm=True, scale_embedding=False)
    e = model.encoder.embedding
    segments = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    x = F.embedding(TOKENS, e.token.weight) + e.position.weight[:5] + F.embedding(segments, e.segment.weight)
    wanted = F.layer_norm(x, (8,), e.norm.weight, e.norm.bias)
    torch.testing.assert_close(e(TOKENS, None, segments), wanted)
    assert torch.equal(e(TOKENS), e(TOKENS, None, torch.zeros_like(TOKENS)))
    assert not torch.allclose(e(TOKENS), wanted)


def test_scores_of_masked_tokens_pass_a_linear_map_gelu_norm_and_the_tied_embedding():
    model = made(head_bias=True)
    x = model.encoder(TOKENS, POS)
    h = 0.5 * (z := model.transform(x)) * (1 + torch.erf(z / 2**0.5))
    h = nn.functional.layer_norm(h, (8,), model.transform_norm.weight, model.transform_norm.bias)
    wanted = h @ model.encoder.embedding.token.weight.T + model.head.bias
    torch.testing.assert_close(model(TOKENS, POS), wanted)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))),
        ("relu", torch.relu),
        ("silu", lambda x: x * torch.sigmoid(x)),
        ("tanh", torch.tanh),
    ],
)
def test_the_map_below_the_scores_has_any_activation(name, function):
    model = made(head_activation=name)
    h = function(model.transform(model.encoder(TOKENS, POS)))
    h = F.layer_norm(h, (8,), model.transform_norm.weight, model.transform_norm.bias)
    torch.testing.assert_close(
        model(TOKENS, POS), h @ model.encoder.embedding.token.weight.T, rtol=1e-4, atol=1e-5
    )


def test_without_a_map_the_head_reads_the_encoder_itself():
    model = made(head_activation="none", head_bias=True)
    wanted = model.encoder(TOKENS, POS) @ model.encoder.embedding.token.weight.T + model.head.bias
    torch.testing.assert_close(model(TOKENS, POS), wanted)
    assert model.transform is None
    assert not [name for name, _ in model.named_parameters() if "transform" in name]


@pytest.mark.parametrize("bias", [True, False])
def test_a_mean_may_be_of_tokens_that_were_mapped(bias):
    pooling = {"name": "mean", "activation": "gelu", "map_first": True}
    model = made(pooling=pooling, map_bias=bias, labels=["a", "b"])
    h = F.gelu(model.pooler.proj(model.encoder(TOKENS, POS)))
    means = torch.stack([row[pos >= 0].mean(0) for row, pos in zip(h, POS, strict=True)])
    torch.testing.assert_close(model(TOKENS, POS), model.classifier(means))


@pytest.mark.parametrize(("own", "feed_forward", "wanted"), [
    (None, "gelu", True), (None, "swiglu", False), (True, "swiglu", True), (False, "gelu", False),
])  # fmt: skip
def test_maps_behind_the_layers_have_biases_where_it_says_so_else_as_the_layers(own, feed_forward, wanted):
    parts = {"map_bias": own, "feed_forward": feed_forward}
    maps = made(**parts).transform, made(**parts, labels=["a", "b"]).pooler.proj
    assert [one.bias is not None for one in maps] == [wanted, wanted]


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
@pytest.mark.parametrize("width", [6, 8, 10])
def test_embeddings_of_a_width_of_their_own_are_mapped_to_that_of_the_model(width, position):
    """All that makes them is so wide, and so is what the head reads (Lan et al., 2019, sec. 3.1)."""
    model = made(d_embedding=width, position=position, segments=2, embedding_norm=True, head_bias=True)
    e, segments = model.encoder.embedding, torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    table = e.position.weight if position == "learned" else e.position.table
    x = F.embedding(TOKENS, e.token.weight) * width**0.5 + table[:5]
    x = F.layer_norm(x + F.embedding(segments, e.segment.weight), (width,), e.norm.weight, e.norm.bias)
    wanted = x @ e.proj.weight.T + e.proj.bias
    assert wanted.shape == (2, 5, 8)
    torch.testing.assert_close(e(TOKENS, None, segments), wanted)
    h = F.gelu(model.transform(model.encoder.stack(wanted)))
    h = F.layer_norm(h, (width,), model.transform_norm.weight, model.transform_norm.bias)
    wanted = h @ e.token.weight.T + model.head.bias
    torch.testing.assert_close(model(TOKENS, None, segments), wanted, rtol=1e-4, atol=1e-4)
    assert model.features(TOKENS, POS).shape == (2, 5, width)
    assert made(d_embedding=width, tie_embeddings="none").head.weight.shape == (13, width)


def test_vectors_and_classes_are_as_wide_as_the_model():
    assert made(d_embedding=6, head=False)(TOKENS, POS).shape == (2, 5, 8)
    assert made(d_embedding=6, labels=["a", "b"]).classifier.in_features == 8


def test_positions_of_the_layers_do_not_depend_on_the_width_of_embeddings():
    for position in ("rope", "t5", "shaw", "alibi"):
        assert made(d_embedding=3, position=position)(TOKENS, POS).shape == (2, 5, 13)


@pytest.mark.parametrize("activation", ["none", "tanh", "relu", "gelu"])
@pytest.mark.parametrize("name", ["first", "mean", "max", "last"])
def test_classes_are_scored_from_one_vector_of_the_tokens_that_are_there(name, activation):
    model = made(labels=["x", "y", "z"], pooling={"name": name, "activation": activation})
    apply = {"none": lambda x: x, "tanh": torch.tanh, "relu": torch.relu, "gelu": F.gelu}[activation]
    logits = model(TOKENS, POS)
    assert logits.shape == (2, 3)
    for row, length in ((0, 5), (1, 3)):
        x = model.encoder(TOKENS[row : row + 1, :length])[0]
        pooled = {"first": x[0], "mean": x.mean(0), "max": x.max(0).values, "last": x[-1]}[name]
        if activation != "none":
            pooled = apply(model.pooler.proj.weight @ pooled + model.pooler.proj.bias)
        wanted = model.classifier.weight @ pooled + model.classifier.bias
        torch.testing.assert_close(logits[row], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["first", "mean", "max", "last"])
def test_padding_on_the_left_is_as_inert_as_on_the_right(name):
    model = made(labels=["x", "y"], pooling=name)
    left = torch.tensor([[1, 1, 3, 6, 8]]), torch.tensor([[-1, -1, 0, 1, 2]])
    torch.testing.assert_close(model(*left), model(TOKENS[1:, :3]), rtol=1e-5, atol=1e-6)


def test_an_embedding_norm_can_stand_for_that_of_the_first_layer():
    model = made(embedding_norm="first", norm_first=True, position="rope")
    layers, e = model.encoder.stack.layers, model.encoder.embedding
    x = F.layer_norm(e.token(TOKENS) * e.scale, (8,), e.norm.weight, e.norm.bias)
    wanted = x + layers[0].attn(x, None, None)
    wanted = layers[0].ffn_residual(wanted, layers[0].ffn, None)
    wanted = model.encoder.stack.final_norm(layers[1](wanted))
    torch.testing.assert_close(model.encoder(TOKENS), wanted)
    assert sum(p.numel() for p in made(norm_first=True, embedding_norm=True).parameters()) == 16 + sum(
        p.numel() for p in model.parameters()
    )


def test_layers_in_turn_have_attention_and_positions_of_their_own():
    turns = [{"attention": {"name": "softmax", "window": 2}, "position": {"name": "rope", "theta": 50.0}}, {}]
    config = ModelConfig(**{**SIZES, "kind": "decoder", "n_layers": 4, "position": "rope", "pattern": turns})
    model = build(config, seed=1).eval()
    assert isinstance(model, CausalLM)
    assert [layer.attn.window and layer.attn.window.size for layer in model.stack.layers] == [
        2,
        None,
        2,
        None,
    ]
    assert [layer.attn.position.theta for layer in model.stack.layers] == [50.0, 1e4, 50.0, 1e4]
    assert ModelConfig.model_validate(config.model_dump()) == config
    for i, layer in enumerate(model.stack.layers):
        x = torch.randn(1, 6, 8, requires_grad=True)
        (layer(x)[0, 5] * torch.arange(8.0)).sum().backward()  # a plain sum over a norm is constant
        seen = (x.grad[0].abs().sum(-1) > 0).tolist()
        assert seen == ([False] * 4 + [True] * 2 if i % 2 == 0 else [True] * 6)


HYBRID = [{"attention": "linear"}, {"attention": "softmax"}]
SQUARED = {"name": "linear", "feature_map": "square"}


@pytest.mark.parametrize(
    "changes",
    [
        {"pattern": HYBRID},
        {"kind": "encoder-decoder", "pattern": HYBRID, "decoder_attention": "softmax"},
        {"kind": "decoder", "n_layers": 1, "pattern": HYBRID},
        {"kind": "decoder", "attention": "linear", "pattern": [{}, {"attention": "linear"}]},
        {"kind": "decoder", "pattern": HYBRID},
        {"kind": "decoder", "pattern": [HYBRID[0], {"attention": SQUARED}]},
        {"kind": "decoder", "pattern": [{"block": "lstm"}, {"block": "gru"}], "position": "none"},
        {"kind": "encoder-decoder", "pattern": HYBRID},
        {"kind": "encoder-decoder", "pattern": [{"block": "conv"}, {}], "decoder_block": "transformer"},
    ],
    ids=str,
)
def test_layers_in_turn_may_differ_in_what_they_remember(changes):
    model = build(ModelConfig(**{**SIZES, **changes}), seed=1).eval()
    if model.config.kind == "encoder":
        assert [type(layer.attn).__name__ for layer in model.encoder.stack.layers][:2] == [
            "LinearAttention",
            "Attention",
        ]
        return
    target = torch.tensor([[3, 4, 5, 6]])
    memory = model.encode(TOKENS[:1]) if model.config.kind == "encoder-decoder" else None
    cache = make_cache(None, model.cache_shape, 1, 4)
    whole = model(target) if memory is None else model(TOKENS[:1], target)
    with torch.inference_mode():
        for t in range(4):
            pos = torch.tensor([[t]])
            cache.prepare_step([0], pos)
            step = model.decode(target[:, t : t + 1], pos, cache, memory)
            torch.testing.assert_close(step[:, 0], whole[:, t])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pattern": [{"position": "learned"}]}, "acts on the embeddings"),
        ({"pattern": [{"attention": "sofmax"}]}, "softmax"),
        ({"pattern": [{"block": "lstn"}]}, r"pattern\[0\].block: unknown block 'lstn'; did you mean 'lstm'"),
        (
            {"kind": "decoder", "pattern": [{"block": "lstm", "attention": "linear"}, {}]},
            "pattern: attention 'linear' is of no use to block 'lstm', which has no self-attention: leave it out",
        ),
        (
            {"pattern": [{}, {"block": "conv", "position": "rope"}]},
            "pattern: position 'rope' is of no use to block 'conv', which has no self-attention: leave it out",
        ),
        (
            {"kind": "decoder", "block": "lstm", "attention": "linear"},
            "no layer attends by attention 'linear', the blocks being lstm: leave it out",
        ),
        (
            {
                "kind": "decoder",
                "attention": "linear",
                "pattern": [{"block": "lstm"}, {"attention": "kernel"}],
            },
            "attention 'linear', the blocks being lstm and transformer: leave it out",
        ),
        (
            {"block": "conv", "attention": {"name": "softmax", "window": 4}},
            "attention 'softmax', the blocks being conv",
        ),
        (
            {"kind": "encoder-decoder", "block": "gru", "cross_attention": "softmax", "attention": "linear"},
            "attention 'linear', the blocks being gru",
        ),
        (
            {"kind": "encoder-decoder", "block": {"name": "gru", "attention": False}, "attention": "linear"},
            "attention 'linear', the blocks being gru",
        ),
        (
            {"kind": "decoder", "position": "rope", "pattern": [{"block": "lstm"}, {"position": "alibi"}]},
            "position 'rope' acts on self-attention, and blocks lstm have none",
        ),
        (
            {"block": "lstm", "position": "none", "norm_first": True, "embedding_norm": "first"},
            "takes the place of a norm before attention; block 'lstm' has none: give true or false",
        ),
        ({"embedding_norm": "first"}, "norm_first=true"),
        ({"kind": "decoder", "head": False}, "head=false"),
        ({"kind": "decoder", "labels": ["a"]}, "encoder"),
        ({"kind": "decoder", "pooling": "mean"}, "pooling .* this is kind='decoder': leave it out"),
        ({"kind": "encoder-decoder", "pooling": "first"}, "this is kind='encoder-decoder': leave it out"),
        ({"labels": ["a", "a"]}, "the same"),
        ({"labels": ["a"], "pooling": {"name": "mean", "norm": True}}, "activation"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_config_is_read(changes, said):
    with pytest.raises(UserError, match=said):
        ModelConfig(**{**SIZES, **changes})
