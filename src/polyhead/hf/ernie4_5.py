"""ERNIE 4.5 (Baidu, 2025), its dense models: Llama with rope on features side by side, and biases everywhere or nowhere."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TABLE, TIED, attention, common, said
from polyhead.registry import Choice


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in ERNIE 4.5 0.3B."""
    given.assume(hidden_size=1024, num_hidden_layers=18, num_attention_heads=16)
    bias = given.flag("use_bias", False)
    fields = common(given, kv_heads=2, head_dim=128, max_len=131_072, eps=1e-5, theta=500_000.0)
    gate = Choice.read(fields["feed_forward"])
    return fields | attention(given, bias=bias) | {
        "position": fields["position"] | {"layout": "interleaved"},
        "feed_forward": Choice(gate.name, **gate.options, bias=bias).written(),
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
    }  # fmt: skip


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return said(config) | {"use_bias": config.attention.options.get("bias") is True}


ERNIE4_5 = FAMILY.register("ernie4_5")(
    Family({"CausalLM": "Ernie4_5ForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
