"""OLMo 2 (2024): Llama with norms behind its sub-layers alone, and queries and keys normed over all heads."""

from __future__ import annotations

from polyhead.hf import llama
from polyhead.hf.family import FAMILY, LAYER, Family
from polyhead.hf.keys import Key, fixed, flag, unsaid
from polyhead.hf.llama import BLOCK, BUFFERS, TIED, query_norms, rotary
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.table import one


def keys(position: Key) -> tuple[Key, ...]:
    """What all of this family say, with that row of positions."""
    return (
        unsaid(rms_norm_eps=1e-5),
        *llama.keys(position=position),
        flag("attention_bias", "attention.bias", False),
        query_norms("whole"),
        fixed(sandwich_norm="after"),
    )


KEYS = keys(rotary())
TABLE = (
    *(row for row in LLAMA if "layernorm" not in row.theirs),
    *one(f"{BLOCK}.post_attention_layernorm.weight", f"{LAYER}.attn_residual.after.weight"),
    *one(f"{BLOCK}.post_feedforward_layernorm.weight", f"{LAYER}.ffn_residual.after.weight"),
)
FAMILY.register("olmo2")(Family({"CausalLM": "Olmo2ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
