"""OPT (Zhang et al., 2022): learned positions from row 2 of their table on, ReLU, norms before or after."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, PLAIN, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.llama import attention
from polyhead.hf.table import both, one
from polyhead.hf.vocabularies import byte_level
from polyhead.registry import Choice


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in OPT-125M."""
    given.passed("layerdrop", "init_std", "activation_dropout")
    given.only("_remove_final_layer_norm", False)
    given.only("layer_norm_elementwise_affine", True)
    d_model, bias = given.size("hidden_size", 768), given.flag("enable_bias", True)
    width = given.size("word_embed_proj_dim", d_model)
    activation = PLAIN[given.word("activation_function", "relu", PLAIN)]
    return {
        "kind": "decoder",
        "vocab_size": given.size("vocab_size", 50272),
        "d_model": d_model,
        "d_embedding": None if width == d_model else width,
        "n_layers": given.size("num_hidden_layers", 12),
        "n_heads": given.size("num_attention_heads", 12),
        "d_ff": given.size("ffn_dim", 3072),
        "max_len": given.size("max_position_embeddings", 2048),
        **attention(given, bias=bias),
        "position": {"name": "learned", "offset": 2},
        "norm": {"name": "layernorm", "eps": 1e-5},
        "norm_first": given.flag("do_layer_norm_before", True),
        "feed_forward": Choice(activation.name, **activation.options, bias=bias).written(),
        "dropout": given.number("dropout", 0.1),
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
        "scale_embedding": False,
        "init": "normal",
    }


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "word_embed_proj_dim": config.embedding_width,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "ffn_dim": config.d_ff,
        "max_position_embeddings": config.max_len,
        "activation_function": activation_of(config.feed_forward, PLAIN),
        "do_layer_norm_before": config.norm_first,
        "enable_bias": config.attention.options.get("bias") is True,
        "attention_dropout": config.attention.options.get("dropout", 0.0),
        "dropout": config.dropout,
        "tie_word_embeddings": config.tie_embeddings != "none",
    }


BLOCK = "model.decoder.layers.{n}"
TABLE = (
    *one("model.decoder.embed_tokens.weight", EMBEDDING),
    *one("model.decoder.project_in.weight", "embedding.token_proj.weight"),
    *one("model.decoder.embed_positions.weight", "embedding.position.weight"),
    *both(f"{BLOCK}.self_attn_layer_norm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.self_attn.q_proj", f"{LAYER}.attn.q_proj"),
    *both(f"{BLOCK}.self_attn.k_proj", f"{LAYER}.attn.k_proj"),
    *both(f"{BLOCK}.self_attn.v_proj", f"{LAYER}.attn.v_proj"),
    *both(f"{BLOCK}.self_attn.out_proj", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.final_layer_norm", f"{LAYER}.ffn_residual.norm"),
    *both(f"{BLOCK}.fc1", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.fc2", f"{LAYER}.ffn.down_proj"),
    *both("model.decoder.final_layer_norm", FINAL_NORM),
    *one("model.decoder.project_out.weight", "out_proj.weight"),
    *one("lm_head.weight", HEAD),
)
TIED = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
OPT = FAMILY.register("opt")(
    Family({"CausalLM": "OPTForCausalLM"}, read, write, TABLE, "model.", tied=TIED, vocabulary=byte_level)
)
