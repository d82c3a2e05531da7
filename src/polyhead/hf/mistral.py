"""Mistral (Jiang et al., 2023): Llama whose attention sees a window back."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TABLE, TIED, attention, common, said


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. Without a word on the window it is 4096; null is none."""
    window = None if given.null("sliding_window") else given.size("sliding_window", 4096)
    return common(given, kv_heads=8, max_len=131072) | attention(given, bias=False, window=window)


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return said(config) | {"sliding_window": config.attention.options.get("window")}


MISTRAL = FAMILY.register("mistral")(
    Family({"CausalLM": "MistralForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
