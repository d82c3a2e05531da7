"""Gemma (2024): Llama with GELU in its gate, scaled embeddings, and norms whose weights lie around one."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TABLE, TIED, attention, common, said

TANH = "gelu_pytorch_tanh"


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. "gelu" is the tanh form there, as the reference reads it."""
    given.only("hidden_activation", TANH)  # of files of 2024; the reference reads hidden_act
    given.only("use_bidirectional_attention", False)
    given.assume(hidden_act=TANH)
    if given.values["hidden_act"] == "gelu":
        given.values["hidden_act"] = TANH
    given.assume(hidden_size=3072, num_hidden_layers=28, num_attention_heads=16)
    fields = common(given, kv_heads=16, head_dim=256, max_len=8192)
    return fields | attention(given, bias=given.flag("attention_bias", False)) | {
        "norm": fields["norm"] | {"around_one": True},
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
        "scale_embedding": True,
    }  # fmt: skip


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return said(config) | {"attention_bias": config.attention.options.get("bias") is True}


GEMMA = FAMILY.register("gemma")(
    Family({"CausalLM": "GemmaForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
