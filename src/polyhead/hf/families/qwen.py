"""Qwen2 (2024): Llama with biases in q, k and v only. Qwen3 (2025): no biases, normed queries and keys."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import ConfigField, ModelFields, constant, defaults, map_bool, require
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.layer_types import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    build_pattern,
    parse_layer_types,
    write_windows,
)
from polyhead.hf.families.llama import DERIVED_HEAD_DIM, llama_keys, map_qk_norm, register_llama


def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types. In older files with use_sliding_window, layers from ``max_window_layers`` on have
    a window.
    """
    size = reader.get_int("sliding_window", 4096)
    first_layer = reader.get_int("max_window_layers", 28, minimum=0)
    has_windows = reader.get_bool("use_sliding_window", False)
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: has_windows and layer >= first_layer)
    if SLIDING_ATTENTION in kinds and not has_windows:
        raise reader.value_error("layer_types", "layers with full attention, without use_sliding_window")
    if FULL_ATTENTION not in kinds:
        return {"attention": {"window": size}}
    overrides = {FULL_ATTENTION: {}, SLIDING_ATTENTION: {"attention": fields["attention"] | {"window": size}}}
    return {"layer_pattern": build_pattern(kinds, overrides)}


def _write_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_layer_types``; older readers expect windows from some layer on."""
    windows = write_windows(config)
    kinds = windows["layer_types"]
    return windows | {
        "use_sliding_window": SLIDING_ATTENTION in kinds,
        "max_window_layers": kinds.index(SLIDING_ATTENTION) if SLIDING_ATTENTION in kinds else len(kinds),
    }


LAYER_TYPES = ConfigField(_read_layer_types, _write_layer_types)
KEYS_2 = (
    defaults(max_position_embeddings=32768),
    require("use_mrope", False),
    *llama_keys(kv_heads=32, head_dim=DERIVED_HEAD_DIM),
    constant(attention={"bias": "qkv"}),
    LAYER_TYPES,
)
KEYS_3 = (
    defaults(max_position_embeddings=32768, head_dim=128),
    *llama_keys(kv_heads=32),
    map_bool("attention_bias", "attention.bias", False),
    map_qk_norm(True),
    LAYER_TYPES,
)
register_llama("qwen2", "Qwen2ForCausalLM", KEYS_2)
register_llama("qwen3", "Qwen3ForCausalLM", KEYS_3)
