"""GLM-4 (Zeng et al., 2024) and its second edition of 2025: rope on half of the features, side by side, and few biases."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BLOCK, BUFFERS, TIED, attention, common, said
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.phi3 import GATE_UP
from polyhead.hf.table import FUSED, one


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    given.assume(num_hidden_layers=40, partial_rotary_factor=0.5)
    options = {"bias": "qkv" if given.flag("attention_bias", True) else False}
    fields = common(
        given, kv_heads=2, head_dim=128, max_len=131_072, eps=1.5625e-7, fraction="partial_rotary_factor"
    )
    position = fields["position"] | {"layout": "interleaved"}
    return fields | attention(given, **options) | {"position": position}


def read_4(given: Given) -> dict[str, Any]:
    """As that, with norms behind the sub-layers as well."""
    return read(given) | {"sandwich_norm": True}


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    fields, fraction = said(config), config.position.options.get("fraction", 1.0)
    return fields | {
        "attention_bias": bool(config.attention.options.get("bias")),
        "partial_rotary_factor": fraction,
        "rope_parameters": fields["rope_parameters"] | {"partial_rotary_factor": fraction},
    }


TABLE = (
    *(row for row in LLAMA if not row.theirs.endswith(("gate_proj.weight", "up_proj.weight"))),
    *one(f"{BLOCK}.mlp.gate_up_proj.weight", *GATE_UP, step=FUSED),
)
TABLE_4 = (
    *TABLE,
    *one(f"{BLOCK}.post_self_attn_layernorm.weight", f"{LAYER}.attn_residual.after.weight"),
    *one(f"{BLOCK}.post_mlp_layernorm.weight", f"{LAYER}.ffn_residual.after.weight"),
)
GLM = FAMILY.register("glm")(
    Family({"CausalLM": "GlmForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
GLM4 = FAMILY.register("glm4")(
    Family({"CausalLM": "Glm4ForCausalLM"}, read_4, write, TABLE_4, "model.", BUFFERS, TIED)
)
