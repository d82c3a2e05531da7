"""GPT-2 (Radford et al., 2019): learned positions, pre-norm, matrices stored as (in, out), q, k and v in one."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, PLAIN, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.table import FUSED, FUSED_TRANSPOSED, TRANSPOSED, both, one
from polyhead.hf.vocabularies import byte_level


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in the smallest GPT-2."""
    given.passed("n_ctx", "embd_pdrop", "reorder_and_upcast_attn")
    given.passed(
        "summary_type",
        "summary_use_proj",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
    )
    given.only("scale_attn_by_inverse_layer_idx", False)
    given.only("add_cross_attention", False)
    d_model = given.size("n_embd", 768)
    activation = PLAIN[given.word("activation_function", "gelu_new", PLAIN)]
    scale = None if given.flag("scale_attn_weights", True) else 1.0
    return {
        "kind": "decoder",
        "vocab_size": given.size("vocab_size", 50257),
        "d_model": d_model,
        "n_layers": given.size("n_layer", 12),
        "n_heads": given.size("n_head", 12),
        "d_ff": given.size("n_inner", 4 * d_model),
        "max_len": given.size("n_positions", 1024),
        "attention": {"name": "softmax", "scale": scale, "dropout": given.number("attn_pdrop", 0.1)},
        "position": "learned",
        "norm": {"name": "layernorm", "eps": given.number("layer_norm_epsilon", 1e-5)},
        "norm_first": True,
        "feed_forward": activation.written(),
        "dropout": given.number("resid_pdrop", 0.1),
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
        "scale_embedding": False,
        "init": "normal",
    }


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    options = config.attention.options
    return {
        "vocab_size": config.vocab_size,
        "n_embd": config.d_model,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "n_positions": config.max_len,
        "activation_function": activation_of(config.feed_forward, PLAIN),
        "layer_norm_epsilon": config.norm.options.get("eps", 1e-5),
        "scale_attn_weights": options.get("scale") != 1.0,
        "attn_pdrop": options.get("dropout", 0.0),
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "tie_word_embeddings": config.tie_embeddings != "none",
    }


BLOCK = "transformer.h.{n}"
QKV = (f"{LAYER}.attn.q_proj", f"{LAYER}.attn.k_proj", f"{LAYER}.attn.v_proj")
TABLE = (
    *one("transformer.wte.weight", EMBEDDING),
    *one("transformer.wpe.weight", "embedding.position.weight"),
    *both(f"{BLOCK}.ln_1", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.attn.c_attn", *QKV, weight=FUSED_TRANSPOSED, bias=FUSED),
    *both(f"{BLOCK}.attn.c_proj", f"{LAYER}.attn.o_proj", weight=TRANSPOSED),
    *both(f"{BLOCK}.ln_2", f"{LAYER}.ffn_residual.norm"),
    *both(f"{BLOCK}.mlp.c_fc", f"{LAYER}.ffn.up_proj", weight=TRANSPOSED),
    *both(f"{BLOCK}.mlp.c_proj", f"{LAYER}.ffn.down_proj", weight=TRANSPOSED),
    *both("transformer.ln_f", FINAL_NORM),
    *one("lm_head.weight", HEAD),
)
GPT2 = FAMILY.register("gpt2")(
    Family(
        {"CausalLM": "GPT2LMHeadModel"},
        read,
        write,
        TABLE,
        "transformer.",
        r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",
        {"lm_head.weight": "transformer.wte.weight"},
        vocabulary=byte_level,
    )
)
