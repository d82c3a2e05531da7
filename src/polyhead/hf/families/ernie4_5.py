"""ERNIE 4.5 (Baidu, 2025), dense models: Llama with interleaved rope, and biases everywhere or nowhere."""

from __future__ import annotations

from polyhead.hf.config_map import constant, defaults, map_bool
from polyhead.hf.families.llama import BUFFERS, TABLE, TIED, llama_keys
from polyhead.hf.family import FAMILY, ModelFamily

# defaults of ERNIE 4.5 0.3B
KEYS = (
    defaults(hidden_size=1024, num_hidden_layers=18, num_attention_heads=16, head_dim=128, rms_norm_eps=1e-5),
    defaults(max_position_embeddings=131_072, rope_theta=500_000.0, tie_word_embeddings=True),
    *llama_keys(kv_heads=2),
    constant(position={"layout": "interleaved"}),
    map_bool("use_bias", "attention.bias feed_forward.bias", False),
)
FAMILY.register("ernie4_5")(
    ModelFamily({"CausalLM": "Ernie4_5ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED)
)
