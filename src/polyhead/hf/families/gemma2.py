"""Gemma 2 (2024): a window in every second layer, softcapped scores, zero-centered norms before and after
sub-layers.
"""

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
    SLIDING_ATTENTION,
    layer_choice,
    parse_layer_types,
    shortest_period,
    write_windows,
)
from polyhead.hf.families.llama import BLOCK, BUFFERS, DIVISIBLE_HEADS, TIED, llama_keys, map_rope
from polyhead.hf.family import (
    FAMILY,
    FINAL_NORM,
    HEAD_WEIGHT,
    HF_GATED_ACTIVATIONS,
    STACK_LAYER,
    TOKEN_EMBEDDING,
    ModelFamily,
    map_activation,
)
from polyhead.hf.weight_map import linear, weight


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
    kinds, attention = (
        parse_layer_types(reader, fields["n_layers"], lambda layer: layer % 2 == 0),
        fields["attention"],
    )
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
    *weight("model.embed_tokens.weight", TOKEN_EMBEDDING),
    *weight(f"{BLOCK}.input_layernorm.weight", f"{STACK_LAYER}.attn_residual.norm.weight"),
    *linear(f"{BLOCK}.self_attn.q_proj", f"{STACK_LAYER}.attn.q_proj"),
    *linear(f"{BLOCK}.self_attn.k_proj", f"{STACK_LAYER}.attn.k_proj"),
    *linear(f"{BLOCK}.self_attn.v_proj", f"{STACK_LAYER}.attn.v_proj"),
    *linear(f"{BLOCK}.self_attn.o_proj", f"{STACK_LAYER}.attn.o_proj"),
    *weight(f"{BLOCK}.self_attn.q_norm.weight", f"{STACK_LAYER}.attn.q_norm.weight"),
    *weight(f"{BLOCK}.self_attn.k_norm.weight", f"{STACK_LAYER}.attn.k_norm.weight"),
    *weight(f"{BLOCK}.post_attention_layernorm.weight", f"{STACK_LAYER}.attn_residual.sandwich_norm.weight"),
    *weight(f"{BLOCK}.pre_feedforward_layernorm.weight", f"{STACK_LAYER}.ffn_residual.norm.weight"),
    *weight(f"{BLOCK}.post_feedforward_layernorm.weight", f"{STACK_LAYER}.ffn_residual.sandwich_norm.weight"),
    *weight(f"{BLOCK}.mlp.gate_proj.weight", f"{STACK_LAYER}.ffn.gate_proj.weight"),
    *weight(f"{BLOCK}.mlp.up_proj.weight", f"{STACK_LAYER}.ffn.up_proj.weight"),
    *weight(f"{BLOCK}.mlp.down_proj.weight", f"{STACK_LAYER}.ffn.down_proj.weight"),
    *weight("model.norm.weight", f"{FINAL_NORM}.weight"),
    *weight("lm_head.weight", HEAD_WEIGHT),
)
FAMILY.register("gemma2")(
    ModelFamily({"CausalLM": "Gemma2ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED)
)
