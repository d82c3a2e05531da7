"""Helium (Kyutai, 2025): Llama with rope on features side by side."""

from __future__ import annotations

from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, flag, unsaid
from polyhead.hf.llama import BUFFERS, TABLE, TIED, keys


def as_wide(given: Given, fields: Fields) -> Fields:
    """All heads are as wide as the model."""
    if fields["head_dim"] * fields["n_heads"] != fields["d_model"]:
        raise given.wrong("head_dim", "hidden_size / num_attention_heads, all that the reference computes")
    return {}


# what is not given is as in Helium 1 2B
KEYS = (
    unsaid(hidden_size=2560, num_attention_heads=20, num_hidden_layers=24, head_dim=128),
    unsaid(max_position_embeddings=4096, rms_norm_eps=1e-8, rope_theta=100_000.0),
    *keys(kv_heads=20),
    Key(as_wide),
    fixed(position={"layout": "interleaved"}),
    flag("attention_bias", "attention.bias", False, yes="qkv"),
    flag("mlp_bias", "feed_forward.bias", False),
)
FAMILY.register("helium")(Family({"CausalLM": "HeliumForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
