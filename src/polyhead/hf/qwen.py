"""Qwen2 (2024): Llama with biases in q, k and v alone. Qwen3 (2025): without, but with normalised queries and keys."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, flag, only, unsaid
from polyhead.hf.llama import BUFFERS, HEAD_DIM_UNSAID, TABLE, TIED, keys, query_norms
from polyhead.hf.pattern import WHOLE, WINDOW, kinds_of, turned, windows_said


def layers(given: Given, fields: Fields) -> Fields:
    """Which layers see a window: layer_types, or in older files those from the number ``max_window_layers`` on, if it is used."""
    size, first = given.size("sliding_window", 4096), given.size("max_window_layers", 28, least=0)
    used = given.flag("use_sliding_window", False)
    kinds = kinds_of(given, fields["n_layers"], lambda layer: used and layer >= first)
    if WINDOW in kinds and not used:
        raise given.wrong("layer_types", "layers that see all, without use_sliding_window")
    if WHOLE not in kinds:
        return {"attention": {"window": size}}
    turns = {WHOLE: {}, WINDOW: {"attention": fields["attention"] | {"window": size}}}
    return {"pattern": turned(kinds, turns)}


def layers_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``layers``; older readers know windows from some layer on."""
    windows = windows_said(config)
    kinds = windows["layer_types"]
    return windows | {
        "use_sliding_window": WINDOW in kinds,
        "max_window_layers": kinds.index(WINDOW) if WINDOW in kinds else len(kinds),
    }


LAYERS = Key(layers, layers_said)
KEYS_2 = (
    unsaid(max_position_embeddings=32768),
    only("use_mrope", False),
    *keys(kv_heads=32, head_dim=HEAD_DIM_UNSAID),
    fixed(attention={"bias": "qkv"}),
    LAYERS,
)
KEYS_3 = (
    unsaid(max_position_embeddings=32768, head_dim=128),
    *keys(kv_heads=32),
    flag("attention_bias", "attention.bias", False),
    query_norms(True),
    LAYERS,
)
FAMILY.register("qwen2")(Family({"CausalLM": "Qwen2ForCausalLM"}, KEYS_2, TABLE, "model.", BUFFERS, TIED))
FAMILY.register("qwen3")(Family({"CausalLM": "Qwen3ForCausalLM"}, KEYS_3, TABLE, "model.", BUFFERS, TIED))
