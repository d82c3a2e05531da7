"""StableLM (Bellagente et al., 2024): Llama with layer norms and a part of rope, and biases in q, k and v or none."""

from __future__ import annotations

from polyhead.hf.family import FAMILY, FINAL_NORM, LAYER, Family
from polyhead.hf.keys import ONE_NORM, Key, flag, found, norm, number, passed, unsaid
from polyhead.hf.llama import BLOCK, BUFFERS, DIVIDED, HEAD_DIM_UNSAID, TIED, keys, query_norms, rotary
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.table import both, one

# what is not given is as in StableLM 3B
KEYS = (
    unsaid(hidden_size=2560, intermediate_size=6912, vocab_size=50304, max_position_embeddings=4096),
    unsaid(partial_rotary_factor=0.25),
    *keys(
        kv_heads=32,
        head_dim=HEAD_DIM_UNSAID,
        norms=norm("layer_norm_eps", "layernorm", 1e-5),
        position=rotary("partial_rotary_factor"),
    ),
    DIVIDED,
    passed("rms_norm_eps"),
    flag("use_qkv_bias", "attention.bias", False, yes="qkv"),
    query_norms("each", "qk_layernorm"),
    Key(
        lambda given, fields: {"block": ONE_NORM} if given.flag("use_parallel_residual", False) else {},
        lambda config: {"use_parallel_residual": found(config, "block.name") == "parallel"},
    ),
    number("hidden_dropout", "dropout", 0.0),
)
TABLE = (
    *(row for row in LLAMA if not row.theirs.endswith("norm.weight")),
    *both(f"{BLOCK}.input_layernorm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.post_attention_layernorm", f"{LAYER}.ffn_residual.norm"),
    *both("model.norm", FINAL_NORM),
    *one(f"{BLOCK}.self_attn.q_layernorm.norms.{{q}}.weight", f"{LAYER}.attn.q_norm.heads.{{q}}"),
    *one(f"{BLOCK}.self_attn.k_layernorm.norms.{{k}}.weight", f"{LAYER}.attn.k_norm.heads.{{k}}"),
)
FAMILY.register("stablelm")(Family({"CausalLM": "StableLmForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
