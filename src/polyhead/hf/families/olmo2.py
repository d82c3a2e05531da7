"""OLMo 2, OLMo 3 and EXAONE 4.0: Llama with norms only after its sub-layers."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import ConfigField, ModelFields, constant, defaults, ignore, map_bool
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.layer_types import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    build_pattern,
    layer_choice,
    parse_layer_types,
    read_window,
    rope_options,
    write_windows,
)
from polyhead.hf.families.llama import (
    BLOCK,
    llama_keys,
    map_qk_norm,
    map_rope,
    register_llama,
    write_rope,
)
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.families.rope_per_layer_type import read_ropes, write_ropes
from polyhead.hf.family import STACK_LAYER
from polyhead.hf.weight_map import weight


# OLMo 2 (2024): Llama with norms only after its sub-layers, and queries and keys normed over all heads.
def olmo2_keys(position: ConfigField) -> tuple[ConfigField, ...]:
    """Return the rows of this family with that row of positions."""
    return (
        defaults(rms_norm_eps=1e-5),
        *llama_keys(position=position),
        map_bool("attention_bias", "attention.bias", False),
        map_qk_norm("all_heads"),
        constant(sandwich_norm="after"),
    )


KEYS = olmo2_keys(map_rope())
TABLE = (
    *(row for row in LLAMA if "layernorm" not in row.hf_name),
    *weight(f"{BLOCK}.post_attention_layernorm.weight", f"{STACK_LAYER}.attn_residual.sandwich_norm.weight"),
    *weight(f"{BLOCK}.post_feedforward_layernorm.weight", f"{STACK_LAYER}.ffn_residual.sandwich_norm.weight"),
)
register_llama("olmo2", "Olmo2ForCausalLM", KEYS, TABLE)


# OLMo 3 (2025): OLMo 2 with a window in all but every fourth layer, scaled rope only in those without.
# transformers applies the theta of older files to the full-attention layers
THETAS = {FULL_ATTENTION: ("rope_theta", 500_000.0), SLIDING_ATTENTION: (None, 500_000.0)}


def _read_olmo3_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types: by default all but every fourth layer have a window."""
    positions = read_ropes(reader, THETAS, fields["max_len"])
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: (layer + 1) % 4 > 0)
    overrides: dict[str, ModelFields] = {FULL_ATTENTION: {}}
    if SLIDING_ATTENTION in kinds:
        size = read_window(reader)
        overrides[SLIDING_ATTENTION] = {
            "attention": fields["attention"] | {"window": size},
            "position": positions[SLIDING_ATTENTION],
        }
    return {
        "position": positions[FULL_ATTENTION],
        "layer_pattern": build_pattern(kinds, overrides),
    }


def _write_olmo3_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_olmo3_layer_types``."""
    windows = write_windows(config, config.max_len)
    return windows | write_ropes(config, THETAS, windows["layer_types"])


OLMO3_KEYS = (
    ignore("sliding_window"),
    *olmo2_keys(ConfigField()),
    ConfigField(_read_olmo3_layer_types, _write_olmo3_layer_types),
)
register_llama("olmo3", "Olmo3ForCausalLM", OLMO3_KEYS, TABLE)


# EXAONE 4.0 (LG AI Research, 2025): OLMo 2 with queries and keys normed per head.
#
# Layers with a window have rope; in models that have windows, full-attention layers have no positions.
def _read_exaone_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types. Without a window size all layers have full attention and rope."""
    size = None if reader.is_null("sliding_window") else reader.get_int("sliding_window", 4096)
    reader.ignore("sliding_window", "sliding_window_pattern")
    period = 1 if size is None or reader.has("layer_types") else reader.get_int("sliding_window_pattern", 4)
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: (layer + 1) % period > 0)
    if size is None and SLIDING_ATTENTION in kinds:
        raise reader.value_error(
            "layer_types", f"{FULL_ATTENTION} for each layer, since sliding_window is null"
        )
    overrides: dict[str, ModelFields] = {
        FULL_ATTENTION: {} if size is None else {"position": "none"},
        SLIDING_ATTENTION: {"attention": fields["attention"] | {"window": size}},
    }
    return {"layer_pattern": build_pattern(kinds, overrides)}


def _write_exaone_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_exaone_layer_types``, with the rope of the layers that have it."""
    # if no layer has a window, any window size means that no layer has positions
    positions = [layer_choice(config, "position", i).name for i in range(config.n_layers)]
    default_window = config.max_len if "none" in positions else None
    return write_rope(rope_options(config)) | write_windows(config, default_window)


EXAONE_KEYS = (
    defaults(vocab_size=102400, intermediate_size=16384, rms_norm_eps=1e-5),
    *llama_keys(),
    constant(attention={"bias": False}, sandwich_norm="after"),
    map_qk_norm(True),
    ConfigField(_read_exaone_layer_types, _write_exaone_layer_types),
)
register_llama("exaone4", "Exaone4ForCausalLM", EXAONE_KEYS, TABLE)
