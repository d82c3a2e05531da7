"""StableLM (Bellagente et al., 2024): Llama with layer norms, partial rope, and optional biases in q, k and
v.
"""

from __future__ import annotations

from polyhead.hf.config_map import (
    PARALLEL_BLOCK,
    ConfigField,
    defaults,
    get_field,
    ignore,
    map_bool,
    map_float,
    map_norm,
)
from polyhead.hf.families.llama import (
    BLOCK,
    BUFFERS,
    DERIVED_HEAD_DIM,
    DIVISIBLE_HEADS,
    TIED,
    llama_keys,
    map_qk_norm,
    map_rope,
)
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.family import FAMILY, FINAL_NORM, STACK_LAYER, ModelFamily
from polyhead.hf.weight_map import linear, weight

# defaults of StableLM 3B
KEYS = (
    defaults(hidden_size=2560, intermediate_size=6912, vocab_size=50304, max_position_embeddings=4096),
    defaults(partial_rotary_factor=0.25),
    *llama_keys(
        kv_heads=32,
        head_dim=DERIVED_HEAD_DIM,
        norms=map_norm("layer_norm_eps", "layernorm", 1e-5),
        position=map_rope("partial_rotary_factor"),
    ),
    DIVISIBLE_HEADS,
    ignore("rms_norm_eps"),
    map_bool("use_qkv_bias", "attention.bias", False, true_value="qkv"),
    map_qk_norm("per_head", "qk_layernorm"),
    ConfigField(
        lambda reader, fields: (
            {"block": PARALLEL_BLOCK} if reader.get_bool("use_parallel_residual", False) else {}
        ),
        lambda config: {"use_parallel_residual": get_field(config, "block.name") == "parallel"},
    ),
    map_float("hidden_dropout", "dropout", 0.0),
)
TABLE = (
    *(row for row in LLAMA if not row.hf_name.endswith("norm.weight")),
    *linear(f"{BLOCK}.input_layernorm", f"{STACK_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.post_attention_layernorm", f"{STACK_LAYER}.ffn_residual.norm"),
    *linear("model.norm", FINAL_NORM),
    *weight(f"{BLOCK}.self_attn.q_layernorm.norms.{{q}}.weight", f"{STACK_LAYER}.attn.q_norm.heads.{{q}}"),
    *weight(f"{BLOCK}.self_attn.k_layernorm.norms.{{k}}.weight", f"{STACK_LAYER}.attn.k_norm.heads.{{k}}"),
)
FAMILY.register("stablelm")(
    ModelFamily({"CausalLM": "StableLmForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED)
)
