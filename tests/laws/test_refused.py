"""Designs that make no sense are refused when the config is read, each in one sentence that says what to do instead."""

from __future__ import annotations

import math
from typing import Any

import pytest

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError

SIZES = {"vocab_size": 19, "d_model": 16, "n_heads": 4, "n_layers": 1, "d_ff": 20, "max_len": 16}
BIASES = ("alibi", "t5", "shaw", "disentangled")
TURNED = (
    "feature_map 'square' makes 10 features of a head's 4, and a position that turns heads (rope) turns only those: "
    "take feature_map elu, or position sinusoidal"
)
SCORES = {
    attention: f"attention '{attention}' makes no scores that a bias of the position (alibi, t5, shaw, disentangled) could be "
    "added to: take position rope, sinusoidal, learned or none, or attention softmax"
    for attention in ("linear", "kernel")
}
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({"attention": a, "position": p}, SCORES[a]) for a in SCORES for p in BIASES),
    *(({"decoder_attention": a, "position": p}, SCORES[a]) for a in SCORES for p in BIASES),
    ({"attention": {"name": "linear", "feature_map": "square"}, "position": "rope"}, TURNED),
    (
        {"attention": {"name": "linear", "feature_map": "sqare"}},
        "unknown feature_map 'sqare'; did you mean 'square'? Known: elu, relu, square",
    ),
    (
        {"attention": {"name": "kernel", "sim": "softmax"}},
        "unknown similarity 'softmax'; known: elu, exp, relu, square",
    ),
    (
        {"attention": {"name": "linear", "window": 4}},
        "attention 'linear' has no option 'window'; known: bias, chunk, eps, feature_map, tie",
    ),
    (
        {"attention": {"name": "linear", "chunk": 0}},
        "chunk of attention 'linear' is 0, wanted at least 1 token",
    ),
    (
        {"attention": {"name": "linear", "eps": 0}},
        "eps keeps a denominator from 0, so it is above 0, not 0.0",
    ),
    (
        {"cross_attention": {"name": "linear", "tie": "qk"}, "n_kv_heads": 2},
        "tie=qk wants as many key heads as query heads: n_kv_heads=4",
    ),
    (
        {"attention": {"name": "linear", "tie": "kv"}, "v_head_dim": 3},
        "tie=kv wants values as wide as keys: v_head_dim=4",
    ),
    (
        {"attention": {"name": "softmax", "sink": 1}},
        "sink is 1; it counts tokens seen from beyond a window, so give a window too",
    ),
    (
        {"kind": "encoder-decoder", "d_embedding": 8},
        "d_embedding gives embeddings a width of their own, which an encoder or a decoder may have; "
        "this is kind='encoder-decoder': leave it out",
    ),
    (
        {"share_layers": True, "pattern": [{}, {"position": "rope"}]},
        "share_layers gives all layers the weights of the first, and pattern makes layers of several kinds: leave one out",
    ),
    (
        {"share_layers": True, "embedding_norm": "first", "norm_first": True},
        "embedding_norm=first takes a norm from the first layer, and share_layers gives all layers the weights of the first: "
        "give embedding_norm true or false",
    ),
    (
        {"kind": "decoder", "head_activation": "relu"},
        "head_activation is of the map below an encoder's scores of the vocabulary; this is kind='decoder': leave it out",
    ),
    (
        {"kind": "encoder", "head_activation": "none", "d_embedding": 8},
        "head_activation=none leaves out the map below an encoder's scores, which generator and d_embedding need: give an activation",
    ),
    (
        {"kind": "encoder", "labels": ("a", "b"), "pooling": {"name": "mean", "map_first": True}},
        "map_first of pooling wants the map that it has with an activation alone",
    ),
    (
        {"attention": {"name": "softmax", "qk_eps": 1e-3}},
        "qk_eps is 0.001, and nothing norms queries and keys: give qk_norm too",
    ),
    (
        {"kind": "decoder", "map_bias": False},
        "map_bias is of the maps between an encoder's layers and its scores; this is kind='decoder': leave it out",
    ),
    (
        {"sandwich_norm": True},
        "sandwich_norm adds a norm to those of norm_first: give norm_first=true as well",
    ),
    (
        {"position": "rope", "head_dim": 3},
        "head_dim must be even for rope, which turns pairs of features; here it is 3 (d_model 16, n_heads 4); "
        "the nearest head_dim is 2 or 4",
    ),
    *(
        (
            {kind: {"name": name, option: value}},
            f"{option} of {kind} '{name}': {value} is out of range: should be greater than {least}",
        )
        for kind, name, option, value, least in (
            ("norm", "layernorm", "eps", -1, "or equal to 0"),
            ("norm", "rmsnorm", "eps", -1, "or equal to 0"),
            ("norm", "batchnorm", "eps", -1, "or equal to 0"),
            ("position", "sinusoidal", "base", 0, "0"),
            ("attention", "softmax", "scale", 0, "0"),
            ("init", "normal", "std", -1, "0"),
            ("init", "xavier", "gain", -1, "0"),
        )
    ),
    (
        {"feed_forward": {"name": "leaky_relu", "slope": math.nan}},
        "slope of feed_forward 'leaky_relu': nan is not a finite number",
    ),
    ({"logit_softcap": math.inf}, "inf is not a finite number"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_it_is_refused_in_one_line_that_says_what_to_do(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        ModelConfig(**{**SIZES, **given})
    (line,) = str(caught.value).splitlines()
    assert line.removeprefix(f"{next(iter(given))}: ") == message


@pytest.mark.parametrize(
    "given",
    [
        {"attention": "linear", "position": "rope"},
        {"attention": {"name": "linear", "feature_map": "square"}, "position": "none"},
        {"cross_attention": {"name": "linear", "feature_map": "square"}, "position": "rope"},
        *({"cross_attention": a, "position": p} for a in SCORES for p in BIASES),
    ],
    ids=str,
)
def test_what_stands_beside_it_in_the_table_is_built(given: dict[str, Any]) -> None:
    """Attention to the source has no positions of its own, so what it is does not clash with them."""
    ModelConfig(**{**SIZES, **given})
