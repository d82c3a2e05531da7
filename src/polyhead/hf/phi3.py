"""Phi-3 (Abdin et al., 2024): Llama with q, k and v in one matrix, gate and up in one, and maybe a part of rope."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TIED, attention, common, rope, said
from polyhead.hf.table import FUSED, one


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    given.passed(
        "original_max_position_embeddings", "embd_pdrop", "auto_map"
    )  # published files name a copy of the code of this very family
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        given.only(key, False)
    given.assume(hidden_size=3072)
    max_len = given.size("max_position_embeddings", 4096)
    position = rope(given, max_len, fraction="partial_rotary_factor", scalings=("default", "longrope", "su"))
    fields = common(given, max_len=max_len, eps=1e-5, position=position)
    # up to there the reference reads texts by the short factors, as a model of this max_len does
    fields["max_len"] = min(max_len, position.get("original_len", max_len))
    window = given.size("sliding_window") if given.has("sliding_window") else None
    return (
        fields | attention(given, bias=False, window=window) | {"dropout": given.number("resid_pdrop", 0.0)}
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    options = config.position.options
    fields, fraction = said(config), options.get("fraction", 1.0)
    if original := options.get("original_len"):
        fields["max_position_embeddings"] = round(original * options["factor"])
        fields["original_max_position_embeddings"] = original
    return fields | {
        "rope_parameters": fields["rope_parameters"] | {"partial_rotary_factor": fraction},
        "partial_rotary_factor": fraction,
        "sliding_window": config.attention.options.get("window"),
        "resid_pdrop": config.dropout,
    }


BLOCK = "model.layers.{n}"
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
PHI3 = FAMILY.register("phi3")(
    Family({"CausalLM": "Phi3ForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
