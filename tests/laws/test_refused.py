"""Invalid designs are refused when the config is read, in one sentence that says what to do instead."""

import math
from typing import Any

import pytest

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.nn.validate_model import check_model

SIZES = {"vocab_size": 19, "d_model": 16, "n_heads": 4, "n_layers": 1, "d_ff": 20, "max_len": 16}
BIASES = ("alibi", "t5", "shaw", "disentangled")
SQUARE_WITH_ROPE = (
    "feature_map 'square' maps the 4 features of a head to 10, and a rotary position (rope) requires "
    "equally many: use feature_map elu, or position sinusoidal"
)
NO_SCORES = {
    attention: f"attention '{attention}' has no scores to which a position bias (alibi, t5, shaw, "
    "disentangled) could be added: use position rope, sinusoidal, learned or none, or attention "
    "softmax"
    for attention in ("linear", "kernel")
}
REFUSED_DESIGNS: list[tuple[dict[str, Any], str]] = [
    *(({key: a, "position": p}, NO_SCORES[a])
      for key in ("attention", "decoder_attention") for a in NO_SCORES for p in BIASES),
    ({"attention": {"name": "linear", "feature_map": "square"}, "position": "rope"}, SQUARE_WITH_ROPE),
    ({"attention": {"name": "linear", "feature_map": "sqare"}},
     "unknown feature_map 'sqare'; did you mean 'square'? Known: elu, relu, square"),
    ({"attention": {"name": "kernel", "sim": "softmax"}},
     "unknown similarity 'softmax'; known: elu, exp, relu, square"),
    ({"attention": {"name": "linear", "window": 4}},
     "attention 'linear' has no option 'window'; known: bias, chunk, eps, feature_map, tie"),
    ({"attention": {"name": "linear", "chunk": 0}},
     "chunk of attention 'linear' is 0, expected at least 1 token"),
    ({"attention": {"name": "linear", "eps": 0}},
     "eps must be above 0, to keep a denominator from 0, not 0.0"),
    ({"cross_attention": {"name": "linear", "tie": "qk"}, "n_kv_heads": 2},
     "tie=qk requires as many key heads as query heads: n_kv_heads=4"),
    ({"attention": {"name": "linear", "tie": "kv"}, "v_head_dim": 3},
     "tie=kv requires values as wide as keys: v_head_dim=4"),
    ({"attention": {"name": "softmax", "sink": 1}},
     "sink is 1; it is the number of tokens seen beyond a window, so it requires a window"),
    ({"kind": "encoder-decoder", "d_embedding": 8},
     "d_embedding is supported for an encoder or a decoder; this is kind='encoder-decoder': remove it"),
    ({"share_layers": True, "layer_pattern": [{}, {"position": "rope"}]},
     "share_layers and layer_pattern cannot be combined: with share_layers all layers have the "
     "weights of the first"),
    ({"share_layers": True, "embedding_norm": "first", "norm_first": True},
     "embedding_norm=first and share_layers cannot be combined: set embedding_norm to true or false"),
    ({"kind": "decoder", "head_transform_activation": "relu"},
     "head_transform_activation belongs to the transform before an encoder's vocabulary logits; "
     "this is kind='decoder': remove it"),
    ({"kind": "encoder", "head_transform_activation": "none", "d_embedding": 8},
     "head_transform_activation=none leaves out the map below an encoder's scores, which "
     "generator_layers and d_embedding need: give an activation"),
    ({"kind": "encoder", "labels": ("a", "b"), "pooling": {"name": "mean", "map_first": True}},
     "map_first of pooling requires an activation"),
    ({"attention": {"name": "softmax", "qk_eps": 1e-3}},
     "qk_eps is 0.001, but queries and keys are not normalized: set qk_norm"),
    ({"kind": "decoder", "head_transform_bias": False},
     "head_transform_bias belongs to the linear maps between an encoder's layers and its "
     "logits; this is kind='decoder': remove it"),
    ({"sandwich_norm": True}, "sandwich_norm requires norm_first=true"),
    ({"position": "rope", "head_dim": 3},
     "head_dim must be even for rope, which rotates pairs of features, got 3 (d_model 16, n_heads 4); "
     "the nearest head_dim is 2 or 4"),
    *(({kind: {"name": name, option: value}},
       f"{option} of {kind} '{name}': {value} is out of range: should be greater than {least}")
      for kind, name, option, value, least in (
          ("norm", "layernorm", "eps", -1, "or equal to 0"), ("norm", "rmsnorm", "eps", -1, "or equal to 0"),
          ("norm", "batchnorm", "eps", -1, "or equal to 0"), ("position", "sinusoidal", "base", 0, "0"),
          ("attention", "softmax", "scale", 0, "0"), ("init", "normal", "std", -1, "0"),
          ("init", "xavier", "gain", -1, "0"),
      )),
    ({"feed_forward": {"name": "leaky_relu", "slope": math.nan}},
     "slope of feed_forward 'leaky_relu': nan is not a finite number"),
    ({"logit_softcap": math.inf}, "inf is not a finite number"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"), REFUSED_DESIGNS, ids=lambda x: str(x) if isinstance(x, dict) else ""
)
def test_invalid_design_is_refused_with_advice(changes, message):
    with pytest.raises(UserError) as error:
        check_model(ModelConfig(**{**SIZES, **changes}))
    (line,) = str(error.value).splitlines()
    assert line.removeprefix(f"{next(iter(changes))}: ") == message


def test_similar_valid_designs_are_built():
    """Cross-attention has no positions of its own, so that it never conflicts with them."""
    for changes in (
        {"attention": "linear", "position": "rope"},
        {"attention": {"name": "linear", "feature_map": "square"}, "position": "none"},
        {"cross_attention": {"name": "linear", "feature_map": "square"}, "position": "rope"},
        *({"cross_attention": a, "position": p} for a in NO_SCORES for p in BIASES),
    ):
        check_model(ModelConfig(**{**SIZES, **changes}))
