"""GLM-4 (Zeng et al., 2024) and GLM-4-0414 (2025): interleaved rope on half of the features, few biases."""

from __future__ import annotations

from polyhead.hf.config_map import constant, defaults, map_bool
from polyhead.hf.families.layernorm_llama import GATE_UP
from polyhead.hf.families.llama import BLOCK, llama_keys, map_rope, register_llama
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.family import STACK_LAYER
from polyhead.hf.weight_map import CONCAT, weight

KEYS = (
    defaults(num_hidden_layers=40, head_dim=128, max_position_embeddings=131_072, rms_norm_eps=1.5625e-7),
    defaults(partial_rotary_factor=0.5),
    *llama_keys(kv_heads=2, position=map_rope("partial_rotary_factor")),
    constant(position={"layout": "interleaved"}),
    map_bool("attention_bias", "attention.bias", True, true_value="qkv"),
)
KEYS_4 = (*KEYS, constant(sandwich_norm=True))  # norms after the sub-layers as well
TABLE = (
    *(row for row in LLAMA if not row.hf_name.endswith(("gate_proj.weight", "up_proj.weight"))),
    *weight(f"{BLOCK}.mlp.gate_up_proj.weight", *GATE_UP, transform=CONCAT),
)
TABLE_4 = (
    *TABLE,
    *weight(f"{BLOCK}.post_self_attn_layernorm.weight", f"{STACK_LAYER}.attn_residual.sandwich_norm.weight"),
    *weight(f"{BLOCK}.post_mlp_layernorm.weight", f"{STACK_LAYER}.ffn_residual.sandwich_norm.weight"),
)
register_llama("glm", "GlmForCausalLM", KEYS, TABLE)
register_llama("glm4", "Glm4ForCausalLM", KEYS_4, TABLE_4)
