"""Gemma (2024): Llama with GELU in its gate, scaled embeddings, and norms whose weights lie around one."""

from __future__ import annotations

from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, flag, only, unsaid
from polyhead.hf.llama import BUFFERS, TABLE, TIED, keys

TANH = "gelu_pytorch_tanh"


def gelu(given: Given, fields: Fields) -> Fields:
    """The word "gelu" is the tanh form there, as the reference reads it."""
    given.only("hidden_activation", TANH)  # of files of 2024; the reference reads hidden_act
    if given.values["hidden_act"] == "gelu":
        given.values["hidden_act"] = TANH
    return {}


KEYS = (
    unsaid(hidden_size=3072, num_hidden_layers=28, num_attention_heads=16, head_dim=256, hidden_act=TANH),
    unsaid(max_position_embeddings=8192, tie_word_embeddings=True),
    only("use_bidirectional_attention", False),
    Key(gelu),
    *keys(kv_heads=16),
    fixed(norm={"around_one": True}, scale_embedding=True),
    flag("attention_bias", "attention.bias", False),
)
FAMILY.register("gemma")(Family({"CausalLM": "GemmaForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
