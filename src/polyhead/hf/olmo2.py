"""OLMo 2 (2024): Llama with norms behind its sub-layers alone, and queries and keys normed over all heads."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BLOCK, BUFFERS, TIED, attention, common, said
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.table import one


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    return fields(given, 2048)


def fields(given: Given, max_len: int, position: dict[str, Any] | None = None) -> dict[str, Any]:
    """What all of this family say, with the usual keys of rope unless the ``position`` is given."""
    found = common(given, max_len=max_len, eps=1e-5, position=position)
    bias, eps = given.flag("attention_bias", False), found["norm"]["eps"]
    return found | attention(given, bias=bias, qk_norm="whole", qk_eps=eps) | {"sandwich_norm": "after"}


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return said(config) | {"attention_bias": config.attention.options.get("bias") is True}


TABLE = (
    *(row for row in LLAMA if "layernorm" not in row.theirs),
    *one(f"{BLOCK}.post_attention_layernorm.weight", f"{LAYER}.attn_residual.after.weight"),
    *one(f"{BLOCK}.post_feedforward_layernorm.weight", f"{LAYER}.ffn_residual.after.weight"),
)
OLMO2 = FAMILY.register("olmo2")(
    Family({"CausalLM": "Olmo2ForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
