"""Granite 3 (IBM, 2024): Llama with four factors: on embeddings, scores, what sub-layers add, and what the head reads.

Some are mixtures, whose files hold the experts of a layer in one tensor.
"""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BLOCK, BUFFERS, TABLE, TIED, attention, biased, biases_said, common, said
from polyhead.hf.mixtures import AROUND, experts, experts_said
from polyhead.hf.table import expert_by_expert, one
from polyhead.ranges import factor_of


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    fields = common(given, max_len=2048)
    return fields | factors(given, fields) | biased(given, fields)


def read_mixture(given: Given) -> dict[str, Any]:
    """config.json of a mixture -> fields of ModelConfig. Picked experts are weighed among themselves."""
    fields = common(given, max_len=2048)
    return fields | factors(given, fields) | experts(given, "num_local_experts", normalize=True)


def factors(given: Given, fields: dict[str, Any]) -> dict[str, Any]:
    """Attention and what is multiplied, for a model with these fields."""
    root, usual = fields["d_model"] ** 0.5, fields["head_dim"] ** -0.5
    scale, bias = above_0(given, "attention_multiplier"), given.flag("attention_bias", False)
    embeddings, outputs = above_0(given, "embedding_multiplier"), above_0(given, "logits_scaling")
    return attention(given, bias=bias, scale=None if scale == usual else scale) | {
        "scale_embedding": embeddings == root or embeddings,
        "scale_residual": above_0(given, "residual_multiplier"),
        "scale_output": outputs == root or outputs,
    }


def above_0(given: Given, key: str) -> float:
    """A factor, which is 1 if not given."""
    value = given.number(key, 1.0)
    if value <= 0:
        raise given.wrong(key, "a number above 0")
    return value


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return said(config) | biases_said(config) | factors_said(config)


def write_mixture(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json of a mixture."""
    bias = {"attention_bias": config.attention.options.get("bias") is True}
    return said(config) | bias | factors_said(config) | experts_said(config, "num_local_experts")


def factors_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``factors``."""
    root, scale = config.d_model**0.5, config.attention.options.get("scale")
    assert config.head_dim is not None
    return {
        "attention_multiplier": config.head_dim**-0.5 if scale is None else scale,
        "embedding_multiplier": factor_of(config.scale_embedding, root),
        "residual_multiplier": config.scale_residual,
        "logits_scaling": factor_of(config.scale_output, root),
    }


FFN, EXPERT = f"{BLOCK}.block_sparse_moe", f"{LAYER}.ffn.experts.{{e}}"
INSIDE = (f"{EXPERT}.gate_proj.weight", f"{EXPERT}.up_proj.weight")
MIXTURE = (
    *AROUND,
    *one(f"{FFN}.router.layer.weight", f"{LAYER}.ffn.router.weight"),
    *one(f"{FFN}.input_linear.weight", *INSIDE, step=expert_by_expert),
    *one(f"{FFN}.output_linear.weight", f"{EXPERT}.down_proj.weight", step=expert_by_expert),
)
GRANITE = FAMILY.register("granite")(
    Family({"CausalLM": "GraniteForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
GRANITE_MOE = FAMILY.register("granitemoe")(
    Family(
        {"CausalLM": "GraniteMoeForCausalLM"}, read_mixture, write_mixture, MIXTURE, "model.", BUFFERS, TIED
    )
)
