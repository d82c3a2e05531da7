"""SmolLM3 (2025): Llama in which every fourth layer has no positions."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, passed, unsaid
from polyhead.hf.llama import BIASES, BUFFERS, TABLE, TIED, keys, rope_said
from polyhead.hf.pattern import MOST, WINDOW, kinds_of, part, rope_of, turn, windows_said


def layers(given: Given, fields: Fields) -> Fields:
    """Which have rope, and which a window."""
    ropes, n_layers = turning(given, fields["n_layers"]), fields["n_layers"]
    size = given.size("sliding_window") if given.has("sliding_window") else None
    used = given.flag("use_sliding_window", False) and size is not None
    kinds = kinds_of(given, n_layers, lambda layer: used and not ropes[layer])
    if WINDOW in kinds and not used:
        raise given.wrong(
            "layer_types", "layers that see all, without use_sliding_window and a sliding_window"
        )
    found = [
        ({} if roped else {"position": "none"})
        | ({"attention": fields["attention"] | {"window": size}} if kind == WINDOW else {})
        for roped, kind in turn(list(zip(ropes, kinds, strict=True)))
    ]
    return {"pattern": found if any(found) else []}


def turning(given: Given, n_layers: int) -> list[bool]:
    """Whether each layer has rope: a 1 for it in no_rope_layers, or all but every one of an interval."""
    every = given.size("no_rope_layer_interval", 4)
    if not given.has("no_rope_layers"):
        return [(layer + 1) % every > 0 for layer in range(min(n_layers, MOST))]
    found = given.bits("no_rope_layers")
    if len(found) < n_layers:
        raise given.wrong("no_rope_layers", f"a 1 or 0 for each of {n_layers} layers")
    return found[:n_layers]


def layers_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``layers``, and the rope of those that have it."""
    windows = windows_said(config)
    positions = [part(config, "position", i).name for i in range(config.n_layers)]
    return rope_said(rope_of(config)) | windows | {
        "no_rope_layers": [int(name != "none") for name in positions],
        "use_sliding_window": windows["sliding_window"] is not None,
    }  # fmt: skip


KEYS = (
    unsaid(hidden_size=2048, num_hidden_layers=36, num_attention_heads=16, max_position_embeddings=32768),
    unsaid(rope_theta=2_000_000.0, tie_word_embeddings=True),
    passed("max_window_layers"),  # the reference reads others in its place
    *keys(kv_heads=4),
    *BIASES,
    Key(layers, layers_said),
)
FAMILY.register("smollm3")(Family({"CausalLM": "SmolLM3ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
