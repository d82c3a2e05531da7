"""EXAONE 4.0 (LG AI Research, 2025): OLMo 2 with queries and keys normed per head.

Layers with a window have rope; in models that have windows, full-attention layers have no positions.
"""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import ConfigField, ModelFields, constant, defaults
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families import llama
from polyhead.hf.families.layer_types import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    build_pattern,
    layer_choice,
    parse_layer_types,
    rope_options,
    write_windows,
)
from polyhead.hf.families.llama import BUFFERS, TIED, map_qk_norm, write_rope
from polyhead.hf.families.olmo2 import TABLE
from polyhead.hf.family import FAMILY, ModelFamily


def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
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


def _write_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_layer_types``, with the rope of the layers that have it."""
    # if no layer has a window, any window size means that no layer has positions
    positions = [layer_choice(config, "position", i).name for i in range(config.n_layers)]
    default_window = config.max_len if "none" in positions else None
    return write_rope(rope_options(config)) | write_windows(config, default_window)


KEYS = (
    defaults(vocab_size=102400, intermediate_size=16384, rms_norm_eps=1e-5),
    *llama.llama_keys(),
    constant(attention={"bias": False}, sandwich_norm="after"),
    map_qk_norm(True),
    ConfigField(_read_layer_types, _write_layer_types),
)
FAMILY.register("exaone4")(
    ModelFamily({"CausalLM": "Exaone4ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED)
)
