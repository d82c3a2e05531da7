"""Falcon (Almazrouei et al., 2023): one head of keys or few, sub-layers side by side behind one norm or two, rope."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, PLAIN, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.llama import attention, rope, rope_said
from polyhead.hf.table import both, head_by_head, one
from polyhead.registry import Choice


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in Falcon 7B.

    The newer architecture, of 40B and Falcon 2, has any number of heads of keys and one norm or two; the older has one
    norm where sub-layers stand side by side.
    """
    given.passed("auto_map")  # published files name a copy of the code of this very family
    given.only("alibi", False)
    given.only("apply_residual_connection_post_layernorm", False)
    newer, bias = given.flag("new_decoder_architecture", False), given.flag("bias", False)
    beside, single = given.flag("parallel_attn", True), given.flag("multi_query", True)
    d_model, n_heads = given.size("hidden_size", 4544), given.size("num_attention_heads", 71)
    n_kv_heads = given.size("num_kv_heads", n_heads)
    if newer:
        given.only("parallel_attn", True)
    norms = given.size("num_ln_in_parallel_attn", 2 if newer else 1)
    if norms > 2 or norms == 2 > 1 + newer:
        raise given.wrong("num_ln_in_parallel_attn", "1, or 2 with new_decoder_architecture")
    max_len = given.size("max_position_embeddings", 2048)
    activation = PLAIN[given.word("activation", "gelu", PLAIN)]
    return {
        "kind": "decoder",
        "vocab_size": given.size("vocab_size", 65024),
        "d_model": d_model,
        "n_layers": given.size("num_hidden_layers", 32),
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads if newer else 1 if single else n_heads,
        "d_ff": given.size("ffn_hidden_size", 4 * d_model),
        "max_len": max_len,
        "block": {"name": "parallel", "one_norm": norms == 1} if beside else "transformer",
        **attention(given, bias=bias),
        "position": rope(given, max_len),
        "norm": {"name": "layernorm", "eps": given.number("layer_norm_epsilon", 1e-5)},
        "norm_first": True,
        "feed_forward": Choice(activation.name, **activation.options, bias=bias).written(),
        "dropout": given.number("hidden_dropout", 0.0),
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
        "scale_embedding": False,
        "init": "normal",
    }


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json: of the newer architecture what the older one has not."""
    beside, two = config.block.name == "parallel", two_norms(config)
    newer = beside and (two or config.kv_heads not in (1, config.n_heads))
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_kv_heads": config.kv_heads,
        "ffn_hidden_size": config.d_ff,
        "max_position_embeddings": config.max_len,
        "new_decoder_architecture": newer,
        "multi_query": config.kv_heads == 1,
        "parallel_attn": beside,
        "num_ln_in_parallel_attn": 2 if two else 1,
        "alibi": False,
        "bias": config.attention.options.get("bias") is True,
        "activation": activation_of(config.feed_forward, PLAIN),
        "layer_norm_epsilon": config.norm.options.get("eps", 1e-5),
        "attention_dropout": config.attention.options.get("dropout", 0.0),
        "hidden_dropout": config.dropout,
        "tie_word_embeddings": config.tie_embeddings != "none",
        **rope_said(config.position.options),
    }


def two_norms(config: ModelConfig) -> bool:
    """Whether sub-layers side by side have a norm each."""
    return config.block.name == "parallel" and not config.block.options.get("one_norm")


BLOCK = "transformer.h.{n}"
QKV = (f"{LAYER}.attn.q_proj", f"{LAYER}.attn.k_proj", f"{LAYER}.attn.v_proj")
NORMS = {True: ("ln_attn", "ln_mlp"), False: ("input_layernorm", "post_attention_layernorm")}
TABLE = (
    *one("transformer.word_embeddings.weight", EMBEDDING),
    *both(f"{BLOCK}.self_attention.query_key_value", *QKV, weight=head_by_head, bias=head_by_head),
    *both(f"{BLOCK}.self_attention.dense", f"{LAYER}.attn.o_proj"),
    *(
        row._replace(where=lambda config, two=two: two_norms(config) == two)  # type: ignore[misc]
        for two, names in NORMS.items()
        for name, residual in zip(names, ("attn", "ffn"), strict=True)
        for row in both(f"{BLOCK}.{name}", f"{LAYER}.{residual}_residual.norm")
    ),
    *both(f"{BLOCK}.mlp.dense_h_to_4h", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.mlp.dense_4h_to_h", f"{LAYER}.ffn.down_proj"),
    *both("transformer.ln_f", FINAL_NORM),
    *one("lm_head.weight", HEAD),
)
BUFFERS = r"transformer\.h\.\d+\.self_attention\.rotary_emb\.inv_freq"
TIED = {"lm_head.weight": "transformer.word_embeddings.weight"}
FALCON = FAMILY.register("falcon")(
    Family({"CausalLM": "FalconForCausalLM"}, read, write, TABLE, "transformer.", BUFFERS, TIED)
)
