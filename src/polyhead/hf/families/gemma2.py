"""Gemma 2 and 3."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import (
    ConfigField,
    ModelFields,
    constant,
    defaults,
    ignore,
    map_bool,
    map_float,
    require,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.layer_types import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    build_pattern,
    layer_choice,
    parse_layer_types,
    read_window,
    shortest_period,
    write_windows,
)
from polyhead.hf.families.llama import (
    BLOCK,
    BUFFERS,
    DIVISIBLE_HEADS,
    TIED,
    llama_keys,
    map_qk_norm,
    map_rope,
    register_llama,
)
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.families.rope_per_layer_type import read_ropes, write_ropes
from polyhead.hf.family import (
    FAMILY,
    HF_GATED_ACTIVATIONS,
    STACK_LAYER,
    ModelFamily,
    map_activation,
)
from polyhead.hf.weight_map import weight


# Gemma 2 (2024): a window in every second layer, softcapped scores, zero-centered norms before and after
# sub-layers.
def _read_query_scale(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read query_pre_attn_scalar, whose square root divides the scores."""
    scalar = reader.get_float("query_pre_attn_scalar", 256)
    if scalar <= 0:
        raise reader.value_error("query_pre_attn_scalar", "a number above 0")
    return {"attention": {"scale": None if scalar == fields["head_dim"] else scalar**-0.5}}


def _write_query_scale(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_query_scale``."""
    scale = layer_choice(config, "attention", 0).options.get("scale")
    return {"query_pre_attn_scalar": config.head_dim if scale is None else round(scale**-2)}


def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types: by default every second layer has a window, beginning with the first."""
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: layer % 2 == 0)
    attention = fields["attention"]
    size = (
        reader.get_int("sliding_window", 4096)
        if SLIDING_ATTENTION in kinds or not reader.is_null("sliding_window")
        else None
    )
    overrides = [
        {"attention": attention | {"window": size if kind == SLIDING_ATTENTION else None}}
        for kind in shortest_period(kinds)
    ]
    return {"layer_pattern": overrides} if len(overrides) > 1 else overrides[0]


# rows of Gemma 2 and 3
COMMON_KEYS = (
    defaults(hidden_size=2304, num_hidden_layers=26, num_attention_heads=8, head_dim=256),
    defaults(tie_word_embeddings=True),
    ignore("cache_implementation", "hidden_act"),  # transformers reads the activation from another key
    *llama_keys(
        kv_heads=4,
        feed_forward=map_activation("hidden_activation", "gelu_pytorch_tanh", HF_GATED_ACTIVATIONS),
        position=ConfigField(),
    ),
    DIVISIBLE_HEADS,
    constant(norm={"zero_centered": True}, sandwich_norm=True, scale_embedding=True),
    map_bool("attention_bias", "attention.bias", False),
    ConfigField(_read_query_scale, _write_query_scale),
)
KEYS = (
    defaults(max_position_embeddings=8192),
    ignore("sliding_window_size"),  # transformers reads another key
    require("use_bidirectional_attention", False),
    *COMMON_KEYS,
    map_rope(),
    map_float("attn_logit_softcapping", "attention.softcap", 50.0, optional=True),
    map_float("final_logit_softcapping", "logit_softcap", 30.0, optional=True),
    ConfigField(_read_layer_types, lambda config: write_windows(config, config.max_len)),
)
TABLE = (
    *(row for row in LLAMA if "post_attention" not in row.hf_name),
    *weight(f"{BLOCK}.post_attention_layernorm.weight", f"{STACK_LAYER}.attn_residual.sandwich_norm.weight"),
    *weight(f"{BLOCK}.pre_feedforward_layernorm.weight", f"{STACK_LAYER}.ffn_residual.norm.weight"),
    *weight(f"{BLOCK}.post_feedforward_layernorm.weight", f"{STACK_LAYER}.ffn_residual.sandwich_norm.weight"),
)
register_llama("gemma2", "Gemma2ForCausalLM", KEYS, TABLE)


# Gemma 3 (2025), text models: Gemma 2 with normed queries and keys, and separate rope for full-attention
# layers.
#
# EmbeddingGemma is the encoder: attention is bidirectional, with a window to both sides.
# keys of older files
THETAS = {FULL_ATTENTION: ("rope_theta", 1_000_000.0), SLIDING_ATTENTION: ("rope_local_base_freq", 10_000.0)}
BASE_CLASS = "Gemma3TextModel"


def _read_gemma3_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types: by default all but every sixth layer have a window.

    The window of an encoder is the total width of both sides.
    """
    if reader.has("attn_logit_softcapping"):
        raise reader.value_error("attn_logit_softcapping", "null; the reference implementation ignores it")
    period = reader.get_int("sliding_window_pattern", 6)
    is_encoder = reader.get_bool("use_bidirectional_attention", False)
    positions = read_ropes(reader, THETAS, fields["max_len"])
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: (layer + 1) % period > 0)
    overrides: dict[str, ModelFields] = {FULL_ATTENTION: {}}
    if SLIDING_ATTENTION in kinds:
        size = read_window(reader)
        window = size // 2 + 1 if is_encoder else size  # to one side, including the token itself
        overrides[SLIDING_ATTENTION] = {
            "attention": fields["attention"] | {"window": window},
            "position": positions[SLIDING_ATTENTION],
        }
    if is_encoder:
        reader.require("architectures", [BASE_CLASS])
    return {
        **({"kind": "encoder", "lm_head": False} if is_encoder else {}),
        "position": positions[FULL_ATTENTION],
        "layer_pattern": build_pattern(kinds, overrides),
    }


def _write_gemma3_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_gemma3_layer_types``, with the keys of older readers as well."""
    values = write_windows(config, config.max_len)
    is_encoder, window = config.kind == "encoder", write_windows(config)["sliding_window"]
    if is_encoder and window is not None:
        values["sliding_window"] = max(1, 2 * (window - 1))
    kinds = values["layer_types"]
    lengths = range(1, len(kinds) + 2)
    periods = [
        n
        for n in lengths
        if kinds == [SLIDING_ATTENTION if (i + 1) % n else FULL_ATTENTION for i in range(len(kinds))]
    ]
    return values | {
        **({"sliding_window_pattern": periods[0]} if periods else {}),
        **write_ropes(config, THETAS, kinds),
        "use_bidirectional_attention": is_encoder,
    }


GEMMA3_KEYS = (
    defaults(max_position_embeddings=131_072),
    ignore("_sliding_window_pattern", "attn_logit_softcapping", "sliding_window"),
    *COMMON_KEYS,
    map_qk_norm("zero_centered"),
    map_float("final_logit_softcapping", "logit_softcap", optional=True),
    ConfigField(_read_gemma3_layer_types, _write_gemma3_layer_types),
)
FAMILY.register("gemma3_text")(
    ModelFamily(
        {"CausalLM": "Gemma3ForCausalLM", "SentenceEncoder": BASE_CLASS},
        GEMMA3_KEYS,
        TABLE,
        "model.",
        BUFFERS,
        TIED,
    )
)
