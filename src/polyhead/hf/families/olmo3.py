"""OLMo 3 (2025): OLMo 2 with a window in all but every fourth layer, scaled rope only in those without."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import ConfigField, ModelFields, ignore
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families import olmo2
from polyhead.hf.families.layer_types import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    build_pattern,
    parse_layer_types,
    read_window,
    write_windows,
)
from polyhead.hf.families.llama import BUFFERS, TIED
from polyhead.hf.families.rope_per_layer_type import read_ropes, write_ropes
from polyhead.hf.family import FAMILY, ModelFamily

# transformers applies the theta of older files to the full-attention layers
THETAS = {FULL_ATTENTION: ("rope_theta", 500_000.0), SLIDING_ATTENTION: (None, 500_000.0)}


def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
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


def _write_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_layer_types``."""
    windows = write_windows(config, config.max_len)
    return windows | write_ropes(config, THETAS, windows["layer_types"])


KEYS = (
    ignore("sliding_window"),
    *olmo2.olmo2_keys(ConfigField()),
    ConfigField(_read_layer_types, _write_layer_types),
)
FAMILY.register("olmo3")(
    ModelFamily({"CausalLM": "Olmo3ForCausalLM"}, KEYS, olmo2.TABLE, "model.", BUFFERS, TIED)
)
