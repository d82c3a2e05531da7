"""Granite 3 (IBM, 2024): Llama with four factors: on embeddings, scores, what sub-layers add, and what the head reads."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TABLE, TIED, attention, biased, biases_said, common, said
from polyhead.ranges import factor_of


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    fields = common(given, max_len=2048)
    root, usual = fields["d_model"] ** 0.5, fields["head_dim"] ** -0.5
    scale, bias = above_0(given, "attention_multiplier"), given.flag("attention_bias", False)
    embeddings, outputs = above_0(given, "embedding_multiplier"), above_0(given, "logits_scaling")
    return fields | attention(given, bias=bias, scale=None if scale == usual else scale) | biased(given, fields) | {
        "scale_embedding": embeddings == root or embeddings,
        "scale_residual": above_0(given, "residual_multiplier"),
        "scale_output": outputs == root or outputs,
    }  # fmt: skip


def above_0(given: Given, key: str) -> float:
    """A factor, which is 1 if not given."""
    value = given.number(key, 1.0)
    if value <= 0:
        raise given.wrong(key, "a number above 0")
    return value


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    root, scale = config.d_model**0.5, config.attention.options.get("scale")
    assert config.head_dim is not None
    return said(config) | biases_said(config) | {
        "attention_multiplier": config.head_dim**-0.5 if scale is None else scale,
        "embedding_multiplier": factor_of(config.scale_embedding, root),
        "residual_multiplier": config.scale_residual,
        "logits_scaling": factor_of(config.scale_output, root),
    }  # fmt: skip


GRANITE = FAMILY.register("granite")(
    Family({"CausalLM": "GraniteForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
