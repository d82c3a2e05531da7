"""BLOOM (Scao et al., 2022): ALiBi, a norm on the embeddings, q, k and v head by head in one."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import attention
from polyhead.hf.table import both, head_by_head, one


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. ``seq_length``, of older files, is no limit: positions are distances."""
    given.only("apply_residual_connection_post_layernorm", False)
    given.passed(
        "slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion"
    )
    given.passed("skip_bias_add", "skip_bias_add_qkv", "offset_alibi")
    d_model = given.size(_one_of(given, "hidden_size", "n_embed"), 64)
    given.only("n_inner", 4 * d_model)
    return {
        "kind": "decoder",
        "vocab_size": given.size("vocab_size", 250880),
        "d_model": d_model,
        "n_layers": given.size(_one_of(given, "n_layer", "num_hidden_layers"), 2),
        "n_heads": given.size(_one_of(given, "n_head", "num_attention_heads"), 8),
        "d_ff": 4 * d_model,
        "max_len": given.size("seq_length", 2048),
        **attention(given, bias=True),
        "position": "alibi",
        "embedding_norm": True,
        "norm": {"name": "layernorm", "eps": given.number("layer_norm_epsilon", 1e-5)},
        "norm_first": True,
        "feed_forward": {"name": "gelu", "tanh": True},
        "dropout": given.number("hidden_dropout", 0.0),
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
        "scale_embedding": False,
        "init": "normal",
    }


def _one_of(given: Given, name: str, other: str) -> str:
    """The name under which the file has it."""
    return other if given.has(other) and not given.has(name) else name


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "seq_length": config.max_len,
        "layer_norm_epsilon": config.norm.options.get("eps", 1e-5),
        "attention_dropout": config.attention.options.get("dropout", 0.0),
        "hidden_dropout": config.dropout,
        "tie_word_embeddings": config.tie_embeddings != "none",
    }


BLOCK = "transformer.h.{n}"
QKV = (f"{LAYER}.attn.q_proj", f"{LAYER}.attn.k_proj", f"{LAYER}.attn.v_proj")
TABLE = (
    *one("transformer.word_embeddings.weight", EMBEDDING),
    *both("transformer.word_embeddings_layernorm", "embedding.norm"),
    *both(f"{BLOCK}.input_layernorm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.self_attention.query_key_value", *QKV, weight=head_by_head, bias=head_by_head),
    *both(f"{BLOCK}.self_attention.dense", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.post_attention_layernorm", f"{LAYER}.ffn_residual.norm"),
    *both(f"{BLOCK}.mlp.dense_h_to_4h", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.mlp.dense_4h_to_h", f"{LAYER}.ffn.down_proj"),
    *both("transformer.ln_f", FINAL_NORM),
    *one("lm_head.weight", HEAD),
)
TIED = {"lm_head.weight": "transformer.word_embeddings.weight"}
BLOOM = FAMILY.register("bloom")(
    Family({"CausalLM": "BloomForCausalLM"}, read, write, TABLE, "transformer.", tied=TIED)
)
