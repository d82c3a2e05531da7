"""SmolLM3 (2025): Llama in which every fourth layer has no positions."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import ConfigField, ModelFields, defaults, ignore
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.layer_types import (
    MAX_LAYERS,
    SLIDING_ATTENTION,
    layer_choice,
    parse_layer_types,
    rope_options,
    shortest_period,
    write_windows,
)
from polyhead.hf.families.llama import BIASES, llama_keys, register_llama, write_rope


def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read which layers have rope and which a window."""
    ropes, n_layers = _read_rope_layers(reader, fields["n_layers"]), fields["n_layers"]
    size = reader.get_int("sliding_window") if reader.has("sliding_window") else None
    has_windows = reader.get_bool("use_sliding_window", False) and size is not None
    kinds = parse_layer_types(reader, n_layers, lambda layer: has_windows and not ropes[layer])
    if SLIDING_ATTENTION in kinds and not has_windows:
        raise reader.value_error(
            "layer_types", "layers with full attention, without use_sliding_window and sliding_window"
        )
    pattern = [
        ({} if roped else {"position": "none"})
        | ({"attention": fields["attention"] | {"window": size}} if kind == SLIDING_ATTENTION else {})
        for roped, kind in shortest_period(list(zip(ropes, kinds, strict=True)))
    ]
    return {"layer_pattern": pattern if any(pattern) else []}


def _read_rope_layers(reader: ConfigReader, n_layers: int) -> list[bool]:
    """Return whether each layer has rope, from no_rope_layers (1: rope) or no_rope_layer_interval."""
    interval = reader.get_int("no_rope_layer_interval", 4)
    if not reader.has("no_rope_layers"):
        return [(layer + 1) % interval > 0 for layer in range(min(n_layers, MAX_LAYERS))]
    has_rope = reader.get_bits("no_rope_layers")
    if len(has_rope) < n_layers:
        raise reader.value_error("no_rope_layers", f"a 1 or 0 for each of {n_layers} layers")
    return has_rope[:n_layers]


def _write_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_layer_types``, with the rope of the layers that have it."""
    windows = write_windows(config)
    positions = [layer_choice(config, "position", i).name for i in range(config.n_layers)]
    return write_rope(rope_options(config)) | windows | {
        "no_rope_layers": [int(name != "none") for name in positions],
        "use_sliding_window": windows["sliding_window"] is not None,
    }  # fmt: skip


KEYS = (
    defaults(hidden_size=2048, num_hidden_layers=36, num_attention_heads=16, max_position_embeddings=32768),
    defaults(rope_theta=2_000_000.0, tie_word_embeddings=True),
    ignore("max_window_layers"),  # transformers reads other keys
    *llama_keys(kv_heads=4),
    *BIASES,
    ConfigField(_read_layer_types, _write_layer_types),
)
register_llama("smollm3", "SmolLM3ForCausalLM", KEYS)
