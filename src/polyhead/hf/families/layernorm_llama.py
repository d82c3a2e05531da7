"""Variants of Llama: Phi-1 to Phi-3, StableLM and StarCoder2; all but Phi-3 have layer norms."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import (
    PARALLEL_BLOCK,
    ConfigField,
    constant,
    defaults,
    get_field,
    ignore,
    map_bool,
    map_float,
    map_int,
    map_norm,
    require,
)
from polyhead.hf.families.llama import (
    BLOCK,
    DERIVED_HEAD_DIM,
    DIVISIBLE_HEADS,
    llama_keys,
    map_qk_norm,
    map_rope,
    register_llama,
)
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.family import (
    CONCAT,
    FINAL_NORM,
    QKV_PROJ,
    STACK_LAYER,
    linear,
    map_activation,
    register_decoder,
    weight,
)

# Phi-1 to Phi-3.
# Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al., 2023): parallel sub-layers after one norm, partial rope,
# biases.
KEYS = (
    defaults(hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, vocab_size=51200),
    defaults(partial_rotary_factor=0.5),
    *llama_keys(
        feed_forward=map_activation("hidden_act", "gelu_new"),
        norms=map_norm("layer_norm_eps", "layernorm", 1e-5),
        position=map_rope("partial_rotary_factor"),
    ),
    ignore("rms_norm_eps"),
    ignore("embd_pdrop", field_paths="dropout"),
    constant(block=PARALLEL_BLOCK, attention={"bias": True}, lm_head_bias=True),
    map_qk_norm("layernorm", "qk_layernorm"),
    map_float("resid_pdrop", "dropout", 0.0),
)
TABLE = (
    *(row for row in LLAMA if not any(part in row.hf_name for part in ("norm", "mlp", "o_proj"))),
    *linear(f"{BLOCK}.input_layernorm", f"{STACK_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.self_attn.dense", f"{STACK_LAYER}.attn.o_proj"),
    *linear(f"{BLOCK}.mlp.fc1", f"{STACK_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.mlp.fc2", f"{STACK_LAYER}.ffn.down_proj"),
    *linear(f"{BLOCK}.self_attn.q_layernorm", f"{STACK_LAYER}.attn.q_norm"),
    *linear(f"{BLOCK}.self_attn.k_layernorm", f"{STACK_LAYER}.attn.k_norm"),
    *linear("model.final_layernorm", FINAL_NORM),
    *weight("lm_head.bias", "head.bias"),
)
register_decoder("phi", "PhiForCausalLM", KEYS, TABLE, "model.embed_tokens")


# Phi-3 (Abdin et al., 2024): Llama with q, k and v in one matrix, gate and up in one, and optional partial
# rope.


def _write_max_len(config: ModelConfig) -> dict[str, Any]:
    """Write the length that longrope extends, if any, and the extended one."""
    options = config.position.options
    original = options.get("original_len")
    if not original:
        return {}
    return {
        "max_position_embeddings": round(original * options["factor"]),
        "original_max_position_embeddings": original,
    }


PHI3_KEYS = (
    defaults(hidden_size=3072, max_position_embeddings=4096, rms_norm_eps=1e-5),
    # published files refer to a copy of this family's code
    ignore("original_max_position_embeddings", "embd_pdrop", "auto_map"),
    *(require(key, False) for key in ("attention_bias", "mlp_bias", "lm_head_bias")),
    *llama_keys(position=map_rope("partial_rotary_factor", ("default", "longrope", "su"))),
    ConfigField(
        # up to which transformers uses the short factors
        lambda reader, fields: {
            "max_len": min(fields["max_len"], fields["position"].get("original_len", fields["max_len"]))
        },
        _write_max_len,
    ),
    constant(attention={"bias": False}),
    map_int("sliding_window", "attention.window", optional=True),
    map_float("resid_pdrop", "dropout", 0.0),
)
GATE_UP = (f"{STACK_LAYER}.ffn.gate_proj.weight", f"{STACK_LAYER}.ffn.up_proj.weight")
SEPARATE_NAMES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
PHI3_TABLE = (
    *(row for row in LLAMA if not any(part in row.hf_name for part in SEPARATE_NAMES)),
    *weight(f"{BLOCK}.self_attn.qkv_proj.weight", *(f"{name}.weight" for name in QKV_PROJ), transform=CONCAT),
    *weight(f"{BLOCK}.mlp.gate_up_proj.weight", *GATE_UP, transform=CONCAT),
)
register_llama("phi3", "Phi3ForCausalLM", PHI3_KEYS, PHI3_TABLE)


# StableLM (Bellagente et al., 2024): Llama with layer norms, partial rope, and optional biases in q, k and
# v.
# defaults of StableLM 3B
STABLELM_KEYS = (
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
STABLELM_TABLE = (
    *(row for row in LLAMA if not row.hf_name.endswith("norm.weight")),
    *linear(f"{BLOCK}.input_layernorm", f"{STACK_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.post_attention_layernorm", f"{STACK_LAYER}.ffn_residual.norm"),
    *linear("model.norm", FINAL_NORM),
    *weight(f"{BLOCK}.self_attn.q_layernorm.norms.{{q}}.weight", f"{STACK_LAYER}.attn.q_norm.heads.{{q}}"),
    *weight(f"{BLOCK}.self_attn.k_layernorm.norms.{{k}}.weight", f"{STACK_LAYER}.attn.k_norm.heads.{{k}}"),
)
register_llama("stablelm", "StableLmForCausalLM", STABLELM_KEYS, STABLELM_TABLE)


# StarCoder2 (Lozhkov et al., 2024): Llama with layer norms, a feed-forward without a gate, and biases.
STARCODER_KEYS = (
    defaults(hidden_size=3072, num_hidden_layers=30, num_attention_heads=24, max_position_embeddings=4096),
    defaults(tie_word_embeddings=True),
    # transformers reads other keys
    ignore("activation_function", "layer_norm_epsilon", "rms_norm_eps", "embedding_dropout"),
    ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "scale_attn_weights"),
    require("mlp_type", "default"),
    require("norm_type", "layer_norm"),
    *llama_keys(
        kv_heads=2,
        feed_forward=map_activation("hidden_act", "gelu_pytorch_tanh"),
        norms=map_norm("norm_epsilon", "layernorm", 1e-5),
    ),
    map_bool("use_bias", "attention.bias feed_forward.bias", True),
    map_int("sliding_window", "attention.window", optional=True),
    map_float("residual_dropout", "dropout", 0.0),
)
STARCODER_TABLE = (
    *(row for row in LLAMA if not row.hf_name.endswith("norm.weight") and "mlp" not in row.hf_name),
    *linear(f"{BLOCK}.input_layernorm", f"{STACK_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.post_attention_layernorm", f"{STACK_LAYER}.ffn_residual.norm"),
    *linear(f"{BLOCK}.mlp.c_fc", f"{STACK_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.mlp.c_proj", f"{STACK_LAYER}.ffn.down_proj"),
    *linear("model.norm", FINAL_NORM),
)
register_llama("starcoder2", "Starcoder2ForCausalLM", STARCODER_KEYS, STARCODER_TABLE)
