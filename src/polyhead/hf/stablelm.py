"""StableLM (Bellagente et al., 2024): Llama with layer norms and a part of rope, and biases in q, k and v or none."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, FINAL_NORM, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BLOCK, BUFFERS, TIED, attention, common, divided, rope, said
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.table import both, one

FRACTION = "partial_rotary_factor"


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in StableLM 3B."""
    eps = given.number("layer_norm_eps", 1e-5)
    normed = {"qk_norm": "each", "qk_eps": eps} if given.flag("qk_layernorm", False) else {}
    bias = "qkv" if given.flag("use_qkv_bias", False) else False
    given.assume(hidden_size=2560, intermediate_size=6912, vocab_size=50304)
    max_len = given.size("max_position_embeddings", 4096)
    position = rope(given, max_len, fraction=FRACTION, turning=0.25)
    fields = divided(given, common(given, kv_heads=32, max_len=max_len, position=position))
    return fields | attention(given, bias=bias, **normed) | {
        "block": {"name": "parallel", "one_norm": True} if given.flag("use_parallel_residual", False) else "transformer",
        "norm": {"name": "layernorm", "eps": eps},
        "dropout": given.number("hidden_dropout", 0.0),
    }  # fmt: skip


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    fields, fraction = said(config), config.position.options.get("fraction", 1.0)
    return {key: value for key, value in fields.items() if key not in ("rms_norm_eps", "head_dim")} | {
        "layer_norm_eps": config.norm.options.get("eps", 1e-5),
        "hidden_dropout": config.dropout,
        "use_qkv_bias": bool(config.attention.options.get("bias")),
        "use_parallel_residual": config.block.name == "parallel",
        "qk_layernorm": config.attention.options.get("qk_norm") == "each",
        FRACTION: fraction,
        "rope_parameters": fields["rope_parameters"] | {FRACTION: fraction},
    }


TABLE = (
    *(row for row in LLAMA if not row.theirs.endswith("norm.weight")),
    *both(f"{BLOCK}.input_layernorm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.post_attention_layernorm", f"{LAYER}.ffn_residual.norm"),
    *both("model.norm", FINAL_NORM),
    *one(f"{BLOCK}.self_attn.q_layernorm.norms.{{q}}.weight", f"{LAYER}.attn.q_norm.heads.{{q}}"),
    *one(f"{BLOCK}.self_attn.k_layernorm.norms.{{k}}.weight", f"{LAYER}.attn.k_norm.heads.{{k}}"),
)
STABLELM = FAMILY.register("stablelm")(
    Family({"CausalLM": "StableLmForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
