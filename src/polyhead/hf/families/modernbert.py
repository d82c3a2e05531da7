"""ModernBERT (Warner et al., 2024): pre-norm, rope, gated feed-forward, mostly windows, few biases."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import (
    ConfigField,
    ModelFields,
    constant,
    ignore,
    map_bool,
    map_float,
    map_norm,
    map_sizes,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.encoder_common import (
    ENCODER_EMBEDDING,
    ENCODER_LAYER,
    encoder_architectures,
    read_architecture,
    read_heads,
    write_heads,
)
from polyhead.hf.families.layer_types import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    build_pattern,
    layer_choice,
    parse_layer_types,
    write_windows,
)
from polyhead.hf.family import FAMILY, HF_GATED_ACTIVATIONS, ModelFamily, map_activation
from polyhead.hf.weight_map import CONCAT, linear, weight
from polyhead.nn.pooling import has_transform_bias


def _read_heads(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the heads."""
    model, bias = read_architecture(reader, "ModernBert"), fields["feed_forward"]["bias"]
    pool = {"cls": "first", "mean": "mean"}[reader.get_choice("classifier_pooling", "cls", ["cls", "mean"])]
    reader.get_choice("classifier_activation", "gelu", ["gelu"])
    head_transform_bias = reader.get_bool("classifier_bias", False)
    lm_head_bias = reader.get_bool("decoder_bias", True)
    return {
        "head_transform_bias": None if head_transform_bias == bias else head_transform_bias,
        **read_heads(reader, model, classifier_pooling={"name": pool, "activation": "gelu", "norm": True}),
        **({"lm_head_bias": lm_head_bias} if model == "MaskedLM" else {}),
    }


def _write_heads(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_heads``."""
    return write_heads(config) | {
        "classifier_activation": "gelu",
        "classifier_bias": has_transform_bias(config),
        "classifier_pooling": "mean" if config.pooling and config.pooling.name == "mean" else "cls",
        "decoder_bias": config.lm_head_bias,
    }


def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types from layer_types; in older files all but every third layer have a window."""
    period = reader.get_int("global_attn_every_n_layers", 3)
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: layer % period > 0)
    size = reader.get_int("local_attention", 128) // 2 + 1  # to one side, including the token itself
    rope = {kind: {"name": "rope", "theta": theta} for kind, theta in _read_thetas(reader).items()}
    window = {"attention": fields["attention"] | {"window": size}, "position": rope[SLIDING_ATTENTION]}
    return {
        "position": rope[FULL_ATTENTION],
        "layer_pattern": build_pattern(kinds, {FULL_ATTENTION: {}, SLIDING_ATTENTION: window}),
    }


def _read_thetas(reader: ConfigReader) -> dict[str, float]:
    """Return the rope theta of each layer type, from rope_parameters or two keys of older files."""
    thetas = {
        FULL_ATTENTION: reader.get_float("global_rope_theta", 160_000.0),
        SLIDING_ATTENTION: reader.get_float("local_rope_theta", 10_000.0),
    }
    if reader.is_null("local_rope_theta"):
        thetas[SLIDING_ATTENTION] = thetas[FULL_ATTENTION]
    parameters = reader.get_section("rope_parameters")
    if parameters is None:
        return thetas
    for kind in thetas:
        if (section := parameters.get_section(kind)) is not None:
            section.get_choice("rope_type", "default", ["default"])
            thetas[kind] = section.get_float("rope_theta", thetas[kind])
            section.reject_unknown()
    parameters.reject_unknown()
    return thetas


def _write_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_layer_types``, with the keys of older readers as well."""
    windows = write_windows(config)
    kinds = windows["layer_types"]
    theta = {FULL_ATTENTION: 160_000.0, SLIDING_ATTENTION: 10_000.0} | {
        kind: layer_choice(config, "position", i).options.get("theta", 10_000.0)
        for i, kind in enumerate(kinds)
    }
    period = next(
        (
            n
            for n in range(1, len(kinds) + 1)
            if kinds == [SLIDING_ATTENTION if i % n else FULL_ATTENTION for i in range(len(kinds))]
        ),
        None,
    )
    return {
        "local_attention": max(1, 2 * ((windows["sliding_window"] or 65) - 1)),
        "layer_types": kinds,
        **({} if period is None else {"global_attn_every_n_layers": period}),
        "global_rope_theta": theta[FULL_ATTENTION],
        "local_rope_theta": theta[SLIDING_ATTENTION],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta[kind]} for kind in theta},
    }


KEYS = (
    ignore("initializer_cutoff_factor", "layer_norm_eps", "deterministic_flash_attn", "reference_compile"),
    ignore("repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index"),
    ignore("position_embedding_type", "classifier_dropout"),
    ignore("mlp_dropout", field_paths="dropout"),
    constant(kind="encoder", attention="softmax", norm_first=True, init="normal"),
    constant(embedding_norm="first", scale_embedding=False),
    *map_sizes(vocab_size=50368, d_model=768, n_layers=22, n_heads=12, d_ff=1152, max_len=8192),
    map_activation("hidden_activation", "gelu", HF_GATED_ACTIVATIONS),
    map_bool("mlp_bias", "feed_forward.bias", False),
    map_norm("norm_eps", "layernorm", 1e-5),
    map_bool("norm_bias", "norm.bias", False),
    map_bool("attention_bias", "attention.bias", False),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_float("embedding_dropout", "dropout", 0.0),
    ConfigField(_read_heads, _write_heads),
    ConfigField(_read_layer_types, _write_layer_types),
)
BLOCK = "model.layers.{n}"
TABLE = (
    *weight("model.embeddings.tok_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *linear("model.embeddings.norm", f"{ENCODER_EMBEDDING}.norm"),
    *linear(f"{BLOCK}.attn_norm", f"{ENCODER_LAYER}.attn_residual.norm"),
    *linear(
        f"{BLOCK}.attn.Wqkv",
        *(f"{ENCODER_LAYER}.attn.{part}_proj" for part in "qkv"),
        weight=CONCAT,
        bias=CONCAT,
    ),
    *linear(f"{BLOCK}.attn.Wo", f"{ENCODER_LAYER}.attn.o_proj"),
    *linear(f"{BLOCK}.mlp_norm", f"{ENCODER_LAYER}.ffn_residual.norm"),
    # the first half has the activation
    *linear(
        f"{BLOCK}.mlp.Wi",
        f"{ENCODER_LAYER}.ffn.gate_proj",
        f"{ENCODER_LAYER}.ffn.up_proj",
        weight=CONCAT,
        bias=CONCAT,
    ),
    *linear(f"{BLOCK}.mlp.Wo", f"{ENCODER_LAYER}.ffn.down_proj"),
    *linear("model.final_norm", "encoder.stack.final_norm"),
    *linear("head.dense", "transform"),
    *linear("head.norm", "transform_norm"),
    *linear("head.dense", "pooler.proj"),
    *linear("head.norm", "pooler.norm"),
    *linear("decoder", "head"),
    *linear("classifier", "classifier"),
)
TIED = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}
FAMILY.register("modernbert")(
    ModelFamily(encoder_architectures("ModernBert"), KEYS, TABLE, "model.", tied_weights=TIED)
)
