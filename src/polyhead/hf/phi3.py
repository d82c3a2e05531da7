"""Phi-3 (Abdin et al., 2024): Llama with q, k and v in one matrix, gate and up in one, and maybe a part of rope."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TIED, attention, common, said
from polyhead.hf.table import FUSED, one


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    given.passed("embd_pdrop", "original_max_position_embeddings")
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        given.only(key, False)
    given.passed("auto_map")  # published files name a copy of the code of this very family
    for key in ("rope_parameters", "rope_scaling"):
        section = given.section(key)
        scaling = (
            "default"
            if section is None
            else section.values.get("rope_type", section.values.get("type", "default"))
        )
        if scaling in ("longrope", "su", "yarn"):
            raise UserError(
                f"{given.where}: {key} asks for longrope, which is not built; checkpoints for short texts, such as "
                "Phi-3-mini-4k-instruct, do without"
            )
        if scaling != "default":
            raise UserError(f"{given.where}: {key} asks for {scaling!r}, which this family does not have")
    window = given.size("sliding_window") if given.has("sliding_window") else None
    given.assume(hidden_size=3072)
    fields = common(given, max_len=4096, eps=1e-5, fraction="partial_rotary_factor")
    return (
        fields | attention(given, bias=False, window=window) | {"dropout": given.number("resid_pdrop", 0.0)}
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    fields, fraction = said(config), config.position.options.get("fraction", 1.0)
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
