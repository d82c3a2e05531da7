"""Seed-OSS (ByteDance, 2025): Llama with biases in q, k and v, and those of the output told apart from them."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, flag, number, unsaid
from polyhead.hf.llama import BUFFERS, TABLE, TIED, keys

BIASES = {(True, True): True, (True, False): "qkv", (False, True): "o", (False, False): False}


def width(given: Given, fields: Fields) -> Fields:
    """Heads are as wide as in Seed-OSS 36B where a file says nothing; null is that they share the model's width."""
    if not given.null("head_dim"):
        given.assume(head_dim=128)
    return {}


def biases(given: Given, fields: Fields) -> Fields:
    """Those of q, k and v, and those of the output."""
    inner, outer = given.flag("attention_bias", True), given.flag("attention_out_bias", False)
    return {"attention": {"bias": BIASES[inner, outer]}}


def biases_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``biases``."""
    bias = config.attention.options.get("bias", True)
    return {"attention_bias": bias in (True, "qkv"), "attention_out_bias": bias in (True, "o")}


# what is not given is as in Seed-OSS 36B
KEYS = (
    unsaid(num_hidden_layers=64, num_attention_heads=80, attention_dropout=0.1),
    unsaid(max_position_embeddings=524_288),
    Key(width),
    *keys(kv_heads=8),
    Key(biases, biases_said),
    flag("mlp_bias", "feed_forward.bias", False),
    number("residual_dropout", "dropout", 0.1),
)
FAMILY.register("seed_oss")(Family({"CausalLM": "SeedOssForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
