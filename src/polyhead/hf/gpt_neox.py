"""GPT-NeoX (Black et al., 2022) and Pythia: sub-layers side by side, a part of rope, q, k and v head by head in one."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, PLAIN, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.llama import attention, rope, rope_said
from polyhead.hf.table import both, head_by_head, one


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in GPT-NeoX-20B."""
    given.passed("classifier_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob")
    max_len = given.size("max_position_embeddings", 2048)
    activation = PLAIN[given.word("hidden_act", "gelu", PLAIN)]
    return {
        "kind": "decoder",
        "vocab_size": given.size("vocab_size", 50432),
        "d_model": given.size("hidden_size", 6144),
        "n_layers": given.size("num_hidden_layers", 44),
        "n_heads": given.size("num_attention_heads", 64),
        "d_ff": given.size("intermediate_size", 24576),
        "max_len": max_len,
        "block": "parallel" if given.flag("use_parallel_residual", True) else "transformer",
        **attention(given, bias=given.flag("attention_bias", True)),
        "position": rope(given, max_len, theta="rotary_emb_base", fraction="rotary_pct", turning=0.25),
        "norm": {"name": "layernorm", "eps": given.number("layer_norm_eps", 1e-5)},
        "norm_first": True,
        "feed_forward": activation.written(),
        "dropout": given.number("hidden_dropout", 0.0),
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", False) else "none",
        "scale_embedding": False,
        "init": "normal",
    }


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    fraction = config.position.options.get("fraction", 1.0)
    positions = rope_said(config.position.options)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "max_position_embeddings": config.max_len,
        "hidden_act": activation_of(config.feed_forward, PLAIN),
        "use_parallel_residual": config.block.name == "parallel",
        "attention_bias": config.attention.options.get("bias") is True,
        "attention_dropout": config.attention.options.get("dropout", 0.0),
        "hidden_dropout": config.dropout,
        "layer_norm_eps": config.norm.options.get("eps", 1e-5),
        "tie_word_embeddings": config.tie_embeddings != "none",
        "rotary_emb_base": positions["rope_theta"],
        "rotary_pct": fraction,
        "rope_parameters": positions["rope_parameters"] | {"partial_rotary_factor": fraction},
    }


BLOCK = "gpt_neox.layers.{n}"
QKV = (f"{LAYER}.attn.q_proj", f"{LAYER}.attn.k_proj", f"{LAYER}.attn.v_proj")
TABLE = (
    *one("gpt_neox.embed_in.weight", EMBEDDING),
    *both(f"{BLOCK}.input_layernorm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.attention.query_key_value", *QKV, weight=head_by_head, bias=head_by_head),
    *both(f"{BLOCK}.attention.dense", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.post_attention_layernorm", f"{LAYER}.ffn_residual.norm"),
    *both(f"{BLOCK}.mlp.dense_h_to_4h", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.mlp.dense_4h_to_h", f"{LAYER}.ffn.down_proj"),
    *both("gpt_neox.final_layer_norm", FINAL_NORM),
    *one("embed_out.weight", HEAD),
)
BUFFERS = r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"
TIED = {"embed_out.weight": "gpt_neox.embed_in.weight"}
GPT_NEOX = FAMILY.register("gpt_neox")(
    Family({"CausalLM": "GPTNeoXForCausalLM"}, read, write, TABLE, "gpt_neox.", BUFFERS, TIED)
)
