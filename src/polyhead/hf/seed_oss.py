"""Seed-OSS (ByteDance, 2025): Llama with biases in q, k and v, and those of the output told apart from them."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TABLE, TIED, attention, biased, biases_said, common, said

BIASES = {(True, True): True, (True, False): "qkv", (False, True): "o", (False, False): False}


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in Seed-OSS 36B."""
    given.assume(num_hidden_layers=64, num_attention_heads=80, attention_dropout=0.1)
    inner, outer = given.flag("attention_bias", True), given.flag("attention_out_bias", False)
    width = None if given.null("head_dim") else 128
    fields = common(given, kv_heads=8, head_dim=width, max_len=524_288)
    return fields | attention(given, bias=BIASES[inner, outer]) | biased(given, fields) | {
        "dropout": given.number("residual_dropout", 0.1),
    }  # fmt: skip


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    bias = config.attention.options.get("bias", True)
    return said(config) | biases_said(config) | {
        "attention_bias": bias in (True, "qkv"),
        "attention_out_bias": bias in (True, "o"),
        "residual_dropout": config.dropout,
    }  # fmt: skip


SEED_OSS = FAMILY.register("seed_oss")(
    Family({"CausalLM": "SeedOssForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
