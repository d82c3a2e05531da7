"""Qwen2 (2024): Llama with biases in q, k and v alone. Qwen3 (2025): without, but with normalised queries and keys."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Key, fixed, flag, found, only, unsaid
from polyhead.hf.llama import BUFFERS, HEAD_DIM_UNSAID, TABLE, TIED, keys, query_norms


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


def window_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``window``."""
    size = found(config, "attention.window")
    kinds = ["full_attention" if size is None else "sliding_attention"] * config.n_layers
    return {
        "use_sliding_window": size is not None,
        "sliding_window": size,
        "max_window_layers": 0,
        "layer_types": kinds,
    }


WINDOW = Key(
    lambda given, fields: {"attention": {"window": window(given, fields["n_layers"])}},
    window_said,
)
KEYS_2 = (
    unsaid(max_position_embeddings=32768),
    only("use_mrope", False),
    *keys(kv_heads=32, head_dim=HEAD_DIM_UNSAID),
    fixed(attention={"bias": "qkv"}),
    WINDOW,
)
KEYS_3 = (
    unsaid(max_position_embeddings=32768, head_dim=128),
    *keys(kv_heads=32),
    flag("attention_bias", "attention.bias", False),
    query_norms(True),
    WINDOW,
)
QWEN2 = FAMILY.register("qwen2")(
    Family({"CausalLM": "Qwen2ForCausalLM"}, KEYS_2, TABLE, "model.", BUFFERS, TIED)
)
QWEN3 = FAMILY.register("qwen3")(
    Family({"CausalLM": "Qwen3ForCausalLM"}, KEYS_3, TABLE, "model.", BUFFERS, TIED)
)
