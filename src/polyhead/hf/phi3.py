"""Phi-3 (Abdin et al., 2024): Llama with q, k and v in one matrix, gate and up in one, and maybe a part of rope."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, number, only, passed, size, unsaid
from polyhead.hf.llama import BLOCK, BUFFERS, TIED, keys, rotary
from polyhead.hf.table import FUSED, one


def shorter(given: Given, fields: Fields) -> Fields:
    """Up to there the reference reads texts by the short factors, as a model of this max_len does."""
    return {"max_len": min(fields["max_len"], fields["position"].get("original_len", fields["max_len"]))}


def longer(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``shorter``."""
    options = config.position.options
    original = options.get("original_len")
    if not original:
        return {}
    return {
        "max_position_embeddings": round(original * options["factor"]),
        "original_max_position_embeddings": original,
    }


KEYS = (
    unsaid(hidden_size=3072, max_position_embeddings=4096, rms_norm_eps=1e-5),
    # published files name a copy of the code of this very family
    passed("original_max_position_embeddings", "embd_pdrop", "auto_map"),
    *(only(key, False) for key in ("attention_bias", "mlp_bias", "lm_head_bias")),
    *keys(position=rotary("partial_rotary_factor", ("default", "longrope", "su"))),
    Key(shorter, longer),
    fixed(attention={"bias": False}),
    size("sliding_window", "attention.window", optional=True),
    number("resid_pdrop", "dropout", 0.0),
)
QKV = (f"{LAYER}.attn.q_proj.weight", f"{LAYER}.attn.k_proj.weight", f"{LAYER}.attn.v_proj.weight")
GATE_UP = (f"{LAYER}.ffn.gate_proj.weight", f"{LAYER}.ffn.up_proj.weight")
TABLE = (
    *one("model.embed_tokens.weight", EMBEDDING),
    *one(f"{BLOCK}.input_layernorm.weight", f"{LAYER}.attn_residual.norm.weight"),
    *one(f"{BLOCK}.self_attn.qkv_proj.weight", *QKV, step=FUSED),
    *one(f"{BLOCK}.self_attn.o_proj.weight", f"{LAYER}.attn.o_proj.weight"),
    *one(f"{BLOCK}.post_attention_layernorm.weight", f"{LAYER}.ffn_residual.norm.weight"),
    *one(f"{BLOCK}.mlp.gate_up_proj.weight", *GATE_UP, step=FUSED),
    *one(f"{BLOCK}.mlp.down_proj.weight", f"{LAYER}.ffn.down_proj.weight"),
    *one("model.norm.weight", f"{FINAL_NORM}.weight"),
    *one("lm_head.weight", HEAD),
)
FAMILY.register("phi3")(Family({"CausalLM": "Phi3ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
