"""Convert layer_types of config.json to a layer pattern and back, for models whose layers differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import ConfigReader, layer_choice

T = TypeVar("T")

SLIDING_ATTENTION, FULL_ATTENTION = "sliding_attention", "full_attention"
MAX_LAYERS = 10_000


def parse_layer_types(reader: ConfigReader, n_layers: int, is_windowed: Callable[[int], bool]) -> list[str]:
    """Return layer_types. Without the key, layers for which ``is_windowed`` is true have a window."""
    kinds = reader.get_strings("layer_types") or [
        SLIDING_ATTENTION if is_windowed(i) else FULL_ATTENTION for i in range(min(n_layers, MAX_LAYERS))
    ]
    if len(kinds) != n_layers or not set(kinds) <= {SLIDING_ATTENTION, FULL_ATTENTION}:
        raise reader.value_error(
            "layer_types", f"{SLIDING_ATTENTION} or {FULL_ATTENTION} for each of {n_layers} layers"
        )
    return kinds


def shortest_period(layers: Sequence[T]) -> list[T]:
    """Return the shortest prefix that the layers repeat."""
    lengths = range(1, len(layers) + 1)
    return list(
        next(layers[:n] for n in lengths if all(layer == layers[i % n] for i, layer in enumerate(layers)))
    )


def build_pattern(kinds: Sequence[str], overrides: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the layer pattern of these types, empty if all layers have the parts of the model."""
    pattern = [overrides[kind] for kind in shortest_period(kinds)]
    return pattern if any(pattern) else []


def rope_options(config: ModelConfig) -> dict[str, Any]:
    """Return the rope options of the first layer with positions, or the model's."""
    layers = (layer_choice(config, "position", i) for i in range(config.n_layers))
    return next((position for position in layers if position.name != "none"), config.position).options


def read_window(reader: ConfigReader) -> int:
    """Return the window size of a config in which some layer has a window."""
    return reader.get_int("sliding_window", None if reader.is_null("sliding_window") else 4096)


def write_windows(config: ModelConfig, default_window: int | None = None) -> dict[str, Any]:
    """Inverse of ``parse_layer_types``, with the size of the first window.

    ``default_window`` is written if no layer has a window, since transformers builds window masks anyway.
    """
    sizes = [layer_choice(config, "attention", i).options.get("window") for i in range(config.n_layers)]
    return {
        "sliding_window": next((size for size in sizes if size is not None), default_window),
        "layer_types": [FULL_ATTENTION if size is None else SLIDING_ATTENTION for size in sizes],
    }
