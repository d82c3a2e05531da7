"""StarCoder2 (Lozhkov et al., 2024): Llama with layer norms, a feed-forward without a gate, and biases."""

from __future__ import annotations

from polyhead.hf.family import FAMILY, FINAL_NORM, LAYER, Family, activation
from polyhead.hf.keys import flag, norm, number, only, passed, size, unsaid
from polyhead.hf.llama import BLOCK, BUFFERS, TIED, keys
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.table import both

KEYS = (
    unsaid(hidden_size=3072, num_hidden_layers=30, num_attention_heads=24, max_position_embeddings=4096),
    unsaid(tie_word_embeddings=True),
    # the reference reads others
    passed("activation_function", "layer_norm_epsilon", "rms_norm_eps", "embedding_dropout"),
    passed("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "scale_attn_weights"),
    only("mlp_type", "default"),
    only("norm_type", "layer_norm"),
    *keys(
        kv_heads=2,
        feed_forward=activation("hidden_act", "gelu_pytorch_tanh"),
        norms=norm("norm_epsilon", "layernorm", 1e-5),
    ),
    flag("use_bias", "attention.bias feed_forward.bias", True),
    size("sliding_window", "attention.window", optional=True),
    number("residual_dropout", "dropout", 0.0),
)
TABLE = (
    *(row for row in LLAMA if not row.theirs.endswith("norm.weight") and "mlp" not in row.theirs),
    *both(f"{BLOCK}.input_layernorm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.post_attention_layernorm", f"{LAYER}.ffn_residual.norm"),
    *both(f"{BLOCK}.mlp.c_fc", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.mlp.c_proj", f"{LAYER}.ffn.down_proj"),
    *both("model.norm", FINAL_NORM),
)
FAMILY.register("starcoder2")(
    Family({"CausalLM": "Starcoder2ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED)
)
