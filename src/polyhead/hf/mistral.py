"""Mistral (Jiang et al., 2023): Llama whose attention sees a window back."""

from __future__ import annotations

from polyhead.hf.family import FAMILY, Family
from polyhead.hf.keys import fixed, size, unsaid
from polyhead.hf.llama import BUFFERS, TABLE, TIED, keys

KEYS = (
    unsaid(max_position_embeddings=131072),
    *keys(kv_heads=8),
    fixed(attention={"bias": False}),
    size("sliding_window", "attention.window", 4096, optional=True),
)
FAMILY.register("mistral")(Family({"CausalLM": "MistralForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
