"""Helium (Kyutai, 2025): Llama with rope on features side by side."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TABLE, TIED, attention, biased, biases_said, common, said


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in Helium 1 2B; all heads are as wide as the model."""
    given.assume(hidden_size=2560, num_attention_heads=20, num_hidden_layers=24)
    fields = common(given, kv_heads=20, head_dim=128, max_len=4096, eps=1e-8, theta=100_000.0)
    if fields["head_dim"] * fields["n_heads"] != fields["d_model"]:
        raise given.wrong("head_dim", "hidden_size / num_attention_heads, all that the reference computes")
    bias = "qkv" if given.flag("attention_bias", False) else False
    return fields | attention(given, bias=bias) | biased(given, fields) | {
        "position": fields["position"] | {"layout": "interleaved"},
    }  # fmt: skip


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return said(config) | biases_said(config) | {"attention_bias": bool(config.attention.options.get("bias"))}


HELIUM = FAMILY.register("helium")(
    Family({"CausalLM": "HeliumForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
