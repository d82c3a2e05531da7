"""Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al., 2023): sub-layers side by side behind one norm, a part of rope, biases."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, FINAL_NORM, LAYER, PLAIN, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.llama import BLOCK, TIED, attention, common, rope, said
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.table import both, one

FRACTION = "partial_rotary_factor"


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    given.passed("embd_pdrop")
    eps = given.number("layer_norm_eps", 1e-5)
    normed = {"qk_norm": "layer", "qk_eps": eps} if given.flag("qk_layernorm", False) else {}
    given.assume(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=24,
        vocab_size=51200,
        hidden_act="gelu_new",
    )
    max_len = given.size("max_position_embeddings", 2048)
    position = rope(given, max_len, fraction=FRACTION, turning=0.5)
    fields = common(given, max_len=max_len, position=position)
    return fields | attention(given, bias=True, **normed) | {
        "block": {"name": "parallel", "one_norm": True},
        "norm": {"name": "layernorm", "eps": eps},
        "feed_forward": PLAIN[given.word("hidden_act", "gelu_new", PLAIN)].written(),
        "dropout": given.number("resid_pdrop", 0.0),
        "head_bias": True,
    }  # fmt: skip


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    fields, fraction = said(config), config.position.options.get("fraction", 1.0)
    return {key: value for key, value in fields.items() if key != "rms_norm_eps"} | {
        "hidden_act": activation_of(config.feed_forward, PLAIN),
        "layer_norm_eps": config.norm.options.get("eps", 1e-5),
        "qk_layernorm": config.attention.options.get("qk_norm") == "layer",
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        FRACTION: fraction,
        "rope_parameters": fields["rope_parameters"] | {FRACTION: fraction},
    }


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
PHI = FAMILY.register("phi")(Family({"CausalLM": "PhiForCausalLM"}, read, write, TABLE, "model.", tied=TIED))
