"""ERNIE 4.5 (Baidu, 2025), its dense models: Llama with rope on features side by side, and biases everywhere or nowhere."""

from __future__ import annotations

from polyhead.hf.family import FAMILY, Family
from polyhead.hf.keys import fixed, flag, unsaid
from polyhead.hf.llama import BUFFERS, TABLE, TIED, keys

# what is not given is as in ERNIE 4.5 0.3B
KEYS = (
    unsaid(hidden_size=1024, num_hidden_layers=18, num_attention_heads=16, head_dim=128, rms_norm_eps=1e-5),
    unsaid(max_position_embeddings=131_072, rope_theta=500_000.0, tie_word_embeddings=True),
    *keys(kv_heads=2),
    fixed(position={"layout": "interleaved"}),
    flag("use_bias", "attention.bias feed_forward.bias", False),
)
FAMILY.register("ernie4_5")(Family({"CausalLM": "Ernie4_5ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
