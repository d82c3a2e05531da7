"""Granite 3 (IBM, 2024): Llama with scales on embeddings, scores, sub-layer outputs, and the input of the
head.

The MoE models store the experts of a layer in one tensor.
"""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.core.option_types import resolve_factor
from polyhead.hf.config_map import ConfigField, ModelFields, map_bool
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.llama import BIASES, BLOCK, llama_keys, register_llama
from polyhead.hf.families.moe import NON_MLP_RULES, map_experts
from polyhead.hf.family import STACK_LAYER
from polyhead.hf.weight_map import per_expert, weight


def read_positive(reader: ConfigReader, key: str) -> float:
    """Return a positive factor, 1 by default."""
    value = reader.get_float(key, 1.0)
    if value <= 0:
        raise reader.value_error(key, "a number above 0")
    return value


def _read_scales(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the four scales."""
    root, usual = fields["d_model"] ** 0.5, fields["head_dim"] ** -0.5
    scale = read_positive(reader, "attention_multiplier")
    embeddings = read_positive(reader, "embedding_multiplier")
    outputs = read_positive(reader, "logits_scaling")
    return {
        "attention": {"scale": None if scale == usual else scale},
        "scale_embedding": embeddings == root or embeddings,
        "residual_scale": read_positive(reader, "residual_multiplier"),
        "logits_scale": outputs == root or outputs,
    }


def _write_scales(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_scales``."""
    root, scale = config.d_model**0.5, config.attention.options.get("scale")
    assert config.head_dim is not None
    return {
        "attention_multiplier": config.head_dim**-0.5 if scale is None else scale,
        "embedding_multiplier": resolve_factor(config.scale_embedding, root),
        "residual_multiplier": config.residual_scale,
        "logits_scaling": resolve_factor(config.logits_scale, root),
    }


SCALES = ConfigField(_read_scales, _write_scales)
KEYS = (*llama_keys(), *BIASES, SCALES)
# the weights of the chosen experts are normalized
KEYS_MIXTURE = (
    *llama_keys(),
    map_bool("attention_bias", "attention.bias", False),
    SCALES,
    map_experts("num_local_experts", normalize=True),
)
FFN, EXPERT = f"{BLOCK}.block_sparse_moe", f"{STACK_LAYER}.ffn.experts.{{e}}"
EXPERT_INPUTS = (f"{EXPERT}.gate_proj.weight", f"{EXPERT}.up_proj.weight")
MIXTURE = (
    *NON_MLP_RULES,
    *weight(f"{FFN}.router.layer.weight", f"{STACK_LAYER}.ffn.router.weight"),
    *weight(f"{FFN}.input_linear.weight", *EXPERT_INPUTS, transform=per_expert),
    *weight(f"{FFN}.output_linear.weight", f"{EXPERT}.down_proj.weight", transform=per_expert),
)
register_llama("granite", "GraniteForCausalLM", KEYS)
register_llama("granitemoe", "GraniteMoeForCausalLM", KEYS_MIXTURE, MIXTURE)
