"""OLMo 2 (2024): Llama with norms only after its sub-layers, and queries and keys normed over all heads."""

from __future__ import annotations

from polyhead.hf.config_map import ConfigField, constant, defaults, map_bool
from polyhead.hf.families import llama
from polyhead.hf.families.llama import BLOCK, BUFFERS, TIED, map_qk_norm, map_rope
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.family import FAMILY, STACK_LAYER, ModelFamily
from polyhead.hf.weight_map import weight


def olmo2_keys(position: ConfigField) -> tuple[ConfigField, ...]:
    """Return the rows of this family with that row of positions."""
    return (
        defaults(rms_norm_eps=1e-5),
        *llama.llama_keys(position=position),
        map_bool("attention_bias", "attention.bias", False),
        map_qk_norm("all_heads"),
        constant(sandwich_norm="after"),
    )


KEYS = olmo2_keys(map_rope())
TABLE = (
    *(row for row in LLAMA if "layernorm" not in row.hf_name),
    *weight(f"{BLOCK}.post_attention_layernorm.weight", f"{STACK_LAYER}.attn_residual.sandwich_norm.weight"),
    *weight(f"{BLOCK}.post_feedforward_layernorm.weight", f"{STACK_LAYER}.ffn_residual.sandwich_norm.weight"),
)
FAMILY.register("olmo2")(ModelFamily({"CausalLM": "Olmo2ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
