"""StarCoder2 (Lozhkov et al., 2024): Llama with layer norms, a feed-forward without a gate, and biases."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, FINAL_NORM, LAYER, PLAIN, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.llama import BLOCK, BUFFERS, TIED, attention, common, said
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.table import both
from polyhead.registry import Choice


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    # the reference reads others
    given.passed("activation_function", "layer_norm_epsilon", "embedding_dropout")
    given.passed("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "scale_attn_weights")
    given.only("mlp_type", "default")
    given.only("norm_type", "layer_norm")
    given.assume(hidden_size=3072, num_hidden_layers=30, num_attention_heads=24)
    bias = given.flag("use_bias", True)
    plain = PLAIN[given.word("hidden_act", "gelu_pytorch_tanh", PLAIN)]
    window = given.size("sliding_window") if given.has("sliding_window") else None
    return common(given, kv_heads=2, max_len=4096) | attention(given, bias=bias, window=window) | {
        "norm": {"name": "layernorm", "eps": given.number("norm_epsilon", 1e-5)},
        "feed_forward": Choice(plain.name, **plain.options, bias=bias).written(),
        "dropout": given.number("residual_dropout", 0.0),
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
    }  # fmt: skip


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    options = config.attention.options
    return {key: value for key, value in said(config).items() if key != "rms_norm_eps"} | {
        "hidden_act": activation_of(config.feed_forward, PLAIN),
        "norm_epsilon": config.norm.options.get("eps", 1e-5),
        "use_bias": options.get("bias") is True,
        "sliding_window": options.get("window"),
        "residual_dropout": config.dropout,
    }


TABLE = (
    *(row for row in LLAMA if not row.theirs.endswith("norm.weight") and "mlp" not in row.theirs),
    *both(f"{BLOCK}.input_layernorm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.post_attention_layernorm", f"{LAYER}.ffn_residual.norm"),
    *both(f"{BLOCK}.mlp.c_fc", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.mlp.c_proj", f"{LAYER}.ffn.down_proj"),
    *both("model.norm", FINAL_NORM),
)
STARCODER2 = FAMILY.register("starcoder2")(
    Family({"CausalLM": "Starcoder2ForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
