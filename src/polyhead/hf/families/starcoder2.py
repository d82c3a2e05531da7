"""StarCoder2 (Lozhkov et al., 2024): Llama with layer norms, a feed-forward without a gate, and biases."""

from __future__ import annotations

from polyhead.hf.config_map import defaults, ignore, map_bool, map_float, map_int, map_norm, require
from polyhead.hf.families.llama import BLOCK, BUFFERS, TIED, llama_keys
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.family import FAMILY, FINAL_NORM, STACK_LAYER, ModelFamily, map_activation
from polyhead.hf.weight_map import linear

KEYS = (
    defaults(hidden_size=3072, num_hidden_layers=30, num_attention_heads=24, max_position_embeddings=4096),
    defaults(tie_word_embeddings=True),
    # transformers reads other keys
    ignore("activation_function", "layer_norm_epsilon", "rms_norm_eps", "embedding_dropout"),
    ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "scale_attn_weights"),
    require("mlp_type", "default"),
    require("norm_type", "layer_norm"),
    *llama_keys(
        kv_heads=2,
        feed_forward=map_activation("hidden_act", "gelu_pytorch_tanh"),
        norms=map_norm("norm_epsilon", "layernorm", 1e-5),
    ),
    map_bool("use_bias", "attention.bias feed_forward.bias", True),
    map_int("sliding_window", "attention.window", optional=True),
    map_float("residual_dropout", "dropout", 0.0),
)
TABLE = (
    *(row for row in LLAMA if not row.hf_name.endswith("norm.weight") and "mlp" not in row.hf_name),
    *linear(f"{BLOCK}.input_layernorm", f"{STACK_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.post_attention_layernorm", f"{STACK_LAYER}.ffn_residual.norm"),
    *linear(f"{BLOCK}.mlp.c_fc", f"{STACK_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.mlp.c_proj", f"{STACK_LAYER}.ffn.down_proj"),
    *linear("model.norm", FINAL_NORM),
)
FAMILY.register("starcoder2")(
    ModelFamily({"CausalLM": "Starcoder2ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED)
)
