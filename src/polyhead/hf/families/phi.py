"""Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al., 2023): parallel sub-layers after one norm, partial rope,
biases.
"""

from __future__ import annotations

from polyhead.hf.config_map import PARALLEL_BLOCK, constant, defaults, ignore, map_float, map_norm
from polyhead.hf.families.llama import BLOCK, TIED, llama_keys, map_qk_norm, map_rope
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.family import FAMILY, FINAL_NORM, STACK_LAYER, ModelFamily, map_activation
from polyhead.hf.weight_map import linear, weight

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
FAMILY.register("phi")(ModelFamily({"CausalLM": "PhiForCausalLM"}, KEYS, TABLE, "model.", tied_weights=TIED))
