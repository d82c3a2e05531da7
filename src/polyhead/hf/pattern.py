"""Layers that are not all alike: those of config.json as turns of a pattern, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from polyhead.config import ModelConfig
from polyhead.hf.given import Given
from polyhead.registry import Choice

T = TypeVar("T")

WINDOW, WHOLE = "sliding_attention", "full_attention"
MOST = 10_000  # layers


def kinds_of(given: Given, n_layers: int, windowed: Callable[[int], bool]) -> list[str]:
    """layer_types; a file without them means a window where ``windowed`` says so of the number of a layer."""
    kinds = given.names("layer_types") or [
        WINDOW if windowed(i) else WHOLE for i in range(min(n_layers, MOST))
    ]
    if len(kinds) != n_layers or not set(kinds) <= {WINDOW, WHOLE}:
        raise given.wrong("layer_types", f"{WINDOW} or {WHOLE} for each of {n_layers} layers")
    return kinds


def turn(layers: Sequence[T]) -> list[T]:
    """The shortest beginning that all layers repeat."""
    lengths = range(1, len(layers) + 1)
    return list(
        next(layers[:n] for n in lengths if all(one == layers[i % n] for i, one in enumerate(layers)))
    )


def turned(kinds: Sequence[str], turns: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The pattern of layers of these kinds; empty where all have the parts that the model says."""
    found = [turns[kind] for kind in turn(kinds)]
    return found if any(found) else []


def part(config: ModelConfig, field: str, layer: int) -> Choice:
    """The attention or position of a layer: of its turn in the pattern, or the one that all have."""
    choice: Choice = getattr(config.turn(layer), field) or getattr(config, field)
    return choice


def rope_of(config: ModelConfig) -> dict[str, Any]:
    """The options of the rope of those layers that have positions, or of what the model says of them."""
    layers = (part(config, "position", i) for i in range(config.n_layers))
    return next((position for position in layers if position.name != "none"), config.position).options


def window_of(given: Given) -> int:
    """The size of the windows, of a file in which some layer has one."""
    return given.size("sliding_window", None if given.null("sliding_window") else 4096)


def windows_said(config: ModelConfig, without: int | None = None) -> dict[str, Any]:
    """The way back of ``kinds_of``, and the size of the first window; ``without`` any layer that has one that number, as the
    reference makes masks of windows all the same."""
    sizes = [part(config, "attention", i).options.get("window") for i in range(config.n_layers)]
    return {
        "sliding_window": next((size for size in sizes if size is not None), without),
        "layer_types": [WHOLE if size is None else WINDOW for size in sizes],
    }
