"""Mistral (Jiang et al., 2023): Llama with sliding window attention."""

from __future__ import annotations

from polyhead.hf.config_map import constant, defaults, map_int
from polyhead.hf.families.llama import BUFFERS, TABLE, TIED, llama_keys
from polyhead.hf.family import FAMILY, ModelFamily

KEYS = (
    defaults(max_position_embeddings=131072),
    *llama_keys(kv_heads=8),
    constant(attention={"bias": False}),
    map_int("sliding_window", "attention.window", 4096, optional=True),
)
FAMILY.register("mistral")(
    ModelFamily({"CausalLM": "MistralForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED)
)
