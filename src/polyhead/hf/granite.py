"""Granite 3 (IBM, 2024): Llama with four factors: on embeddings, scores, what sub-layers add, and what the head reads.

Some are mixtures, whose files hold the experts of a layer in one tensor.
"""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, flag
from polyhead.hf.llama import BIASES, BLOCK, BUFFERS, TABLE, TIED, keys
from polyhead.hf.mixtures import AROUND, experts
from polyhead.hf.table import expert_by_expert, one
from polyhead.ranges import factor_of


def above_0(given: Given, key: str) -> float:
    """A factor, which is 1 if not given."""
    value = given.number(key, 1.0)
    if value <= 0:
        raise given.wrong(key, "a number above 0")
    return value


def factors(given: Given, fields: Fields) -> Fields:
    """What is multiplied."""
    root, usual = fields["d_model"] ** 0.5, fields["head_dim"] ** -0.5
    scale = above_0(given, "attention_multiplier")
    embeddings, outputs = above_0(given, "embedding_multiplier"), above_0(given, "logits_scaling")
    return {
        "attention": {"scale": None if scale == usual else scale},
        "scale_embedding": embeddings == root or embeddings,
        "scale_residual": above_0(given, "residual_multiplier"),
        "scale_output": outputs == root or outputs,
    }


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


FACTORS = Key(factors, factors_said)
KEYS = (*keys(), *BIASES, FACTORS)
# picked experts are weighed among themselves
KEYS_MIXTURE = (
    *keys(),
    flag("attention_bias", "attention.bias", False),
    FACTORS,
    experts("num_local_experts", normalize=True),
)
FFN, EXPERT = f"{BLOCK}.block_sparse_moe", f"{LAYER}.ffn.experts.{{e}}"
INSIDE = (f"{EXPERT}.gate_proj.weight", f"{EXPERT}.up_proj.weight")
MIXTURE = (
    *AROUND,
    *one(f"{FFN}.router.layer.weight", f"{LAYER}.ffn.router.weight"),
    *one(f"{FFN}.input_linear.weight", *INSIDE, step=expert_by_expert),
    *one(f"{FFN}.output_linear.weight", f"{EXPERT}.down_proj.weight", step=expert_by_expert),
)
FAMILY.register("granite")(Family({"CausalLM": "GraniteForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
FAMILY.register("granitemoe")(
    Family({"CausalLM": "GraniteMoeForCausalLM"}, KEYS_MIXTURE, MIXTURE, "model.", BUFFERS, TIED)
)
