"""Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al., 2023): sub-layers side by side behind one norm, a part of rope, biases."""

from __future__ import annotations

from polyhead.hf.family import FAMILY, FINAL_NORM, LAYER, Family, activation
from polyhead.hf.keys import ONE_NORM, fixed, norm, number, passed, unsaid
from polyhead.hf.llama import BLOCK, TIED, keys, query_norms, rotary
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.table import both, one

KEYS = (
    unsaid(hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, vocab_size=51200),
    unsaid(partial_rotary_factor=0.5),
    *keys(
        feed_forward=activation("hidden_act", "gelu_new"),
        norms=norm("layer_norm_eps", "layernorm", 1e-5),
        position=rotary("partial_rotary_factor"),
    ),
    passed("rms_norm_eps"),
    passed("embd_pdrop", places="dropout"),
    fixed(block=ONE_NORM, attention={"bias": True}, head_bias=True),
    query_norms("layer", "qk_layernorm"),
    number("resid_pdrop", "dropout", 0.0),
)
TABLE = (
    *(row for row in LLAMA if not any(part in row.theirs for part in ("norm", "mlp", "o_proj"))),
    *both(f"{BLOCK}.input_layernorm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.self_attn.dense", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.mlp.fc1", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.mlp.fc2", f"{LAYER}.ffn.down_proj"),
    *both(f"{BLOCK}.self_attn.q_layernorm", f"{LAYER}.attn.q_norm"),
    *both(f"{BLOCK}.self_attn.k_layernorm", f"{LAYER}.attn.k_norm"),
    *both("model.final_layernorm", FINAL_NORM),
    *one("lm_head.bias", "head.bias"),
)
FAMILY.register("phi")(Family({"CausalLM": "PhiForCausalLM"}, KEYS, TABLE, "model.", tied=TIED))
