"""Qwen2 (2024): Llama with biases in q, k and v alone. Qwen3 (2025): without, but with normalised queries and keys."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TABLE, TIED, attention, common, said


def window(given: Given, n_layers: int) -> int | None:
    """The window of all layers or of none; one of some layers is not built."""
    size, first = given.size("sliding_window", 4096), given.values.get("max_window_layers", 28)
    given.passed("max_window_layers")
    used = given.flag("use_sliding_window", False)
    types = given.names("layer_types") or [
        "sliding_attention" if used and i >= first else "full_attention" for i in range(min(n_layers, 10_000))
    ]
    if set(types) == {"full_attention"}:
        return None
    if set(types) == {"sliding_attention"} and used:
        return size
    raise given.wrong(
        "layer_types", "layers that all see a window or all the whole text; others are not built"
    )


def windowed(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``window``."""
    size = config.attention.options.get("window")
    kinds = ["full_attention" if size is None else "sliding_attention"] * config.n_layers
    return {
        "use_sliding_window": size is not None,
        "sliding_window": size,
        "max_window_layers": 0,
        "layer_types": kinds,
    }


def read_2(given: Given) -> dict[str, Any]:
    """config.json of Qwen2 -> fields of ModelConfig."""
    given.only("use_mrope", False)
    fields = common(given, kv_heads=32, max_len=32768)
    return fields | attention(given, bias="qkv", window=window(given, fields["n_layers"]))


def write_2(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json of Qwen2, whose heads share d_model."""
    return {key: value for key, value in said(config).items() if key != "head_dim"} | windowed(config)


def read_3(given: Given) -> dict[str, Any]:
    """config.json of Qwen3 -> fields of ModelConfig."""
    fields, bias = (
        common(given, kv_heads=32, head_dim=128, max_len=32768),
        given.flag("attention_bias", False),
    )
    normed = {"qk_norm": True, "qk_eps": fields["norm"]["eps"]}
    return fields | attention(given, bias=bias, **normed, window=window(given, fields["n_layers"]))


def write_3(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json of Qwen3."""
    return said(config) | windowed(config) | {"attention_bias": config.attention.options.get("bias") is True}


QWEN2 = FAMILY.register("qwen2")(
    Family({"CausalLM": "Qwen2ForCausalLM"}, read_2, write_2, TABLE, "model.", BUFFERS, TIED)
)
QWEN3 = FAMILY.register("qwen3")(
    Family({"CausalLM": "Qwen3ForCausalLM"}, read_3, write_3, TABLE, "model.", BUFFERS, TIED)
)
