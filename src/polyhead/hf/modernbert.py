"""ModernBERT (Warner et al., 2024): pre-norm, rotary positions, gated feed-forward, a window in most layers, few biases."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.encoders import EMBEDDING, LAYER, model_of, named, top, top_said
from polyhead.hf.family import FAMILY, GATED, Family, activation
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, flag, norm, number, passed, size
from polyhead.hf.pattern import WHOLE, WINDOW, kinds_of, part, turned, windows_said
from polyhead.hf.table import FUSED, both, one
from polyhead.nn.pooling import biased


def model(given: Given, fields: Fields) -> Fields:
    """What stands on the encoder."""
    model, bias = model_of(given, "ModernBert"), fields["feed_forward"]["bias"]
    pool = {"cls": "first", "mean": "mean"}[given.word("classifier_pooling", "cls", ["cls", "mean"])]
    given.word("classifier_activation", "gelu", ["gelu"])
    map_bias, head_bias = given.flag("classifier_bias", False), given.flag("decoder_bias", True)
    return {
        "map_bias": None if map_bias == bias else map_bias,
        **top(given, model, pooled={"name": pool, "activation": "gelu", "norm": True}),
        **({"head_bias": head_bias} if model == "MaskedLM" else {}),
    }


def model_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``model``."""
    return top_said(config) | {
        "classifier_activation": "gelu",
        "classifier_bias": biased(config),
        "classifier_pooling": "mean" if config.pooling and config.pooling.name == "mean" else "cls",
        "decoder_bias": config.head_bias,
    }


def layers(given: Given, fields: Fields) -> Fields:
    """Which layers see a window: layer_types, or in older files each but every third."""
    every = given.size("global_attn_every_n_layers", 3)
    kinds = kinds_of(given, fields["n_layers"], lambda layer: layer % every > 0)
    size = given.size("local_attention", 128) // 2 + 1  # to one side, the token itself included
    rope = {kind: {"name": "rope", "theta": theta} for kind, theta in thetas(given).items()}
    window = {"attention": fields["attention"] | {"window": size}, "position": rope[WINDOW]}
    return {"position": rope[WHOLE], "pattern": turned(kinds, {WHOLE: {}, WINDOW: window})}


def thetas(given: Given) -> dict[str, float]:
    """theta of rope in either kind of layer: rope_parameters of each kind, or in older files two keys."""
    found = {
        WHOLE: given.number("global_rope_theta", 160_000.0),
        WINDOW: given.number("local_rope_theta", 10_000.0),
    }
    if given.null("local_rope_theta"):
        found[WINDOW] = found[WHOLE]
    parameters = given.section("rope_parameters")
    if parameters is None:
        return found
    for kind in found:
        if (section := parameters.section(kind)) is not None:
            section.word("rope_type", "default", ["default"])
            found[kind] = section.number("rope_theta", found[kind])
            section.finish()
    parameters.finish()
    return found


def layers_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``layers``, with the keys of older readers beside those of today."""
    found = windows_said(config)
    kinds = found["layer_types"]
    theta = {WHOLE: 160_000.0, WINDOW: 10_000.0} | {
        kind: part(config, "position", i).options.get("theta", 10_000.0) for i, kind in enumerate(kinds)
    }
    every = next(
        (
            n
            for n in range(1, len(kinds) + 1)
            if kinds == [WINDOW if i % n else WHOLE for i in range(len(kinds))]
        ),
        None,
    )
    return {
        "local_attention": max(1, 2 * ((found["sliding_window"] or 65) - 1)),
        "layer_types": kinds,
        **({} if every is None else {"global_attn_every_n_layers": every}),
        "global_rope_theta": theta[WHOLE],
        "local_rope_theta": theta[WINDOW],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta[kind]} for kind in theta},
    }


KEYS = (
    passed("initializer_cutoff_factor", "layer_norm_eps", "deterministic_flash_attn", "reference_compile"),
    passed("repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index"),
    passed("position_embedding_type", "classifier_dropout"),
    passed("mlp_dropout", places="dropout"),
    fixed(kind="encoder", attention="softmax", norm_first=True, init="normal"),
    fixed(embedding_norm="first", scale_embedding=False),
    size("vocab_size", "vocab_size", 50368),
    size("hidden_size", "d_model", 768),
    size("num_hidden_layers", "n_layers", 22),
    size("num_attention_heads", "n_heads", 12),
    size("intermediate_size", "d_ff", 1152),
    size("max_position_embeddings", "max_len", 8192),
    activation("hidden_activation", "gelu", GATED),
    flag("mlp_bias", "feed_forward.bias", False),
    norm("norm_eps", "layernorm", 1e-5),
    flag("norm_bias", "norm.bias", False),
    flag("attention_bias", "attention.bias", False),
    number("attention_dropout", "attention.dropout", 0.0),
    number("embedding_dropout", "dropout", 0.0),
    Key(model, model_said),
    Key(layers, layers_said),
)
BLOCK = "model.layers.{n}"
TABLE = (
    *one("model.embeddings.tok_embeddings.weight", f"{EMBEDDING}.token.weight"),
    *both("model.embeddings.norm", f"{EMBEDDING}.norm"),
    *both(f"{BLOCK}.attn_norm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.attn.Wqkv", *(f"{LAYER}.attn.{part}_proj" for part in "qkv"), weight=FUSED, bias=FUSED),
    *both(f"{BLOCK}.attn.Wo", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.mlp_norm", f"{LAYER}.ffn_residual.norm"),
    # the activation is that of the first half
    *both(f"{BLOCK}.mlp.Wi", f"{LAYER}.ffn.gate_proj", f"{LAYER}.ffn.up_proj", weight=FUSED, bias=FUSED),
    *both(f"{BLOCK}.mlp.Wo", f"{LAYER}.ffn.down_proj"),
    *both("model.final_norm", "encoder.stack.final_norm"),
    *both("head.dense", "transform"),
    *both("head.norm", "transform_norm"),
    *both("head.dense", "pooler.proj"),
    *both("head.norm", "pooler.norm"),
    *both("decoder", "head"),
    *both("classifier", "classifier"),
)
TIED = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}
FAMILY.register("modernbert")(Family(named("ModernBert"), KEYS, TABLE, "model.", tied=TIED))
