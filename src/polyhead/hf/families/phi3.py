"""Phi-3 (Abdin et al., 2024): Llama with q, k and v in one matrix, gate and up in one, and optional partial
rope.
"""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import (
    ConfigField,
    ModelFields,
    constant,
    defaults,
    ignore,
    map_float,
    map_int,
    require,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.llama import BLOCK, BUFFERS, TIED, llama_keys, map_rope
from polyhead.hf.family import FAMILY, FINAL_NORM, HEAD_WEIGHT, STACK_LAYER, TOKEN_EMBEDDING, ModelFamily
from polyhead.hf.weight_map import CONCAT, weight


def _read_max_len(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Limit max_len to the length up to which transformers uses the short factors."""
    return {"max_len": min(fields["max_len"], fields["position"].get("original_len", fields["max_len"]))}


def _write_max_len(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_max_len``."""
    options = config.position.options
    original = options.get("original_len")
    if not original:
        return {}
    return {
        "max_position_embeddings": round(original * options["factor"]),
        "original_max_position_embeddings": original,
    }


KEYS = (
    defaults(hidden_size=3072, max_position_embeddings=4096, rms_norm_eps=1e-5),
    # published files refer to a copy of this family's code
    ignore("original_max_position_embeddings", "embd_pdrop", "auto_map"),
    *(require(key, False) for key in ("attention_bias", "mlp_bias", "lm_head_bias")),
    *llama_keys(position=map_rope("partial_rotary_factor", ("default", "longrope", "su"))),
    ConfigField(_read_max_len, _write_max_len),
    constant(attention={"bias": False}),
    map_int("sliding_window", "attention.window", optional=True),
    map_float("resid_pdrop", "dropout", 0.0),
)
QKV = (
    f"{STACK_LAYER}.attn.q_proj.weight",
    f"{STACK_LAYER}.attn.k_proj.weight",
    f"{STACK_LAYER}.attn.v_proj.weight",
)
GATE_UP = (f"{STACK_LAYER}.ffn.gate_proj.weight", f"{STACK_LAYER}.ffn.up_proj.weight")
TABLE = (
    *weight("model.embed_tokens.weight", TOKEN_EMBEDDING),
    *weight(f"{BLOCK}.input_layernorm.weight", f"{STACK_LAYER}.attn_residual.norm.weight"),
    *weight(f"{BLOCK}.self_attn.qkv_proj.weight", *QKV, transform=CONCAT),
    *weight(f"{BLOCK}.self_attn.o_proj.weight", f"{STACK_LAYER}.attn.o_proj.weight"),
    *weight(f"{BLOCK}.post_attention_layernorm.weight", f"{STACK_LAYER}.ffn_residual.norm.weight"),
    *weight(f"{BLOCK}.mlp.gate_up_proj.weight", *GATE_UP, transform=CONCAT),
    *weight(f"{BLOCK}.mlp.down_proj.weight", f"{STACK_LAYER}.ffn.down_proj.weight"),
    *weight("model.norm.weight", f"{FINAL_NORM}.weight"),
    *weight("lm_head.weight", HEAD_WEIGHT),
)
FAMILY.register("phi3")(ModelFamily({"CausalLM": "Phi3ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
