"""GLM-4 (Zeng et al., 2024) and its second edition of 2025: rope on half of the features, side by side, and few biases."""

from __future__ import annotations

from polyhead.hf.family import FAMILY, LAYER, Family
from polyhead.hf.keys import fixed, flag, unsaid
from polyhead.hf.llama import BLOCK, BUFFERS, TIED, keys, rotary
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.phi3 import GATE_UP
from polyhead.hf.table import FUSED, one

KEYS = (
    unsaid(num_hidden_layers=40, head_dim=128, max_position_embeddings=131_072, rms_norm_eps=1.5625e-7),
    unsaid(partial_rotary_factor=0.5),
    *keys(kv_heads=2, position=rotary("partial_rotary_factor")),
    fixed(position={"layout": "interleaved"}),
    flag("attention_bias", "attention.bias", True, yes="qkv"),
)
KEYS_4 = (*KEYS, fixed(sandwich_norm=True))  # norms behind the sub-layers as well
TABLE = (
    *(row for row in LLAMA if not row.theirs.endswith(("gate_proj.weight", "up_proj.weight"))),
    *one(f"{BLOCK}.mlp.gate_up_proj.weight", *GATE_UP, step=FUSED),
)
TABLE_4 = (
    *TABLE,
    *one(f"{BLOCK}.post_self_attn_layernorm.weight", f"{LAYER}.attn_residual.after.weight"),
    *one(f"{BLOCK}.post_mlp_layernorm.weight", f"{LAYER}.ffn_residual.after.weight"),
)
FAMILY.register("glm")(Family({"CausalLM": "GlmForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
FAMILY.register("glm4")(Family({"CausalLM": "Glm4ForCausalLM"}, KEYS_4, TABLE_4, "model.", BUFFERS, TIED))
