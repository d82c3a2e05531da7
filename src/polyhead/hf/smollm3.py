"""SmolLM3 (2025): Llama in which every fourth layer has no positions."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TABLE, TIED, attention, biased, biases_said, common, rope_said, said
from polyhead.hf.pattern import MOST, WINDOW, kinds_of, part, turn, windows_said


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    given.passed("max_window_layers")  # the reference reads others in its place
    given.assume(hidden_size=2048, num_hidden_layers=36, num_attention_heads=16)
    fields = common(given, kv_heads=4, max_len=32768, theta=2_000_000.0)
    ropes, options = turning(given, fields["n_layers"]), {"bias": given.flag("attention_bias", False)}
    size = given.size("sliding_window") if given.has("sliding_window") else None
    used = given.flag("use_sliding_window", False) and size is not None
    kinds = kinds_of(given, fields["n_layers"], lambda layer: used and not ropes[layer])
    if WINDOW in kinds and not used:
        raise given.wrong(
            "layer_types", "layers that see all, without use_sliding_window and a sliding_window"
        )
    layers = [
        ({} if roped else {"position": "none"})
        | (attention(given, **options, window=size) if kind == WINDOW else {})
        for roped, kind in turn(list(zip(ropes, kinds, strict=True)))
    ]
    return fields | attention(given, **options) | biased(given, fields) | {
        "pattern": layers if any(layers) else [],
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
    }  # fmt: skip


def turning(given: Given, n_layers: int) -> list[bool]:
    """Whether each layer has rope: a 1 for it in no_rope_layers, or all but every one of an interval."""
    every = given.size("no_rope_layer_interval", 4)
    if not given.has("no_rope_layers"):
        return [(layer + 1) % every > 0 for layer in range(min(n_layers, MOST))]
    found = given.bits("no_rope_layers")
    if len(found) < n_layers:
        raise given.wrong("no_rope_layers", f"a 1 or 0 for each of {n_layers} layers")
    return found[:n_layers]


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    layers = [part(config, "position", i) for i in range(config.n_layers)]
    rope = next((position for position in layers if position.name != "none"), config.position)
    windows = windows_said(config)
    return said(config) | rope_said(rope.options) | biases_said(config) | windows | {
        "no_rope_layers": [int(position.name != "none") for position in layers],
        "use_sliding_window": windows["sliding_window"] is not None,
    }  # fmt: skip


SMOLLM3 = FAMILY.register("smollm3")(
    Family({"CausalLM": "SmolLM3ForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
