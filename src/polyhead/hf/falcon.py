"""Falcon (Almazrouei et al., 2023): one head of keys or few, sub-layers side by side behind one norm or two, rope."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, QKV, Family, activation
from polyhead.hf.given import Given
from polyhead.hf.keys import DECODER, Fields, Key, flag, norm, number, only, passed, size, tied
from polyhead.hf.llama import rotary
from polyhead.hf.table import both, head_by_head, one


def architecture(given: Given, fields: Fields) -> Fields:
    """The newer architecture, of 40B and Falcon 2, has any number of heads of keys and one norm or two; the older has one
    norm where sub-layers stand side by side."""
    newer, beside = given.flag("new_decoder_architecture", False), given.flag("parallel_attn", True)
    single, n_kv_heads = given.flag("multi_query", True), given.size("num_kv_heads", fields["n_heads"])
    if newer:
        given.only("parallel_attn", True)
    norms = given.size("num_ln_in_parallel_attn", 2 if newer else 1)
    if norms > 2 or norms == 2 > 1 + newer:
        raise given.wrong("num_ln_in_parallel_attn", "1, or 2 with new_decoder_architecture")
    return {
        "n_kv_heads": n_kv_heads if newer else 1 if single else fields["n_heads"],
        "block": {"name": "parallel", "one_norm": norms == 1} if beside else "transformer",
    }


def architecture_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``architecture``: of the newer one what the older one has not."""
    beside, two = config.block.name == "parallel", two_norms(config)
    return {
        "num_kv_heads": config.kv_heads,
        "new_decoder_architecture": beside and (two or config.kv_heads not in (1, config.n_heads)),
        "multi_query": config.kv_heads == 1,
        "parallel_attn": beside,
        "num_ln_in_parallel_attn": 2 if two else 1,
    }


def two_norms(config: ModelConfig) -> bool:
    """Whether sub-layers side by side have a norm each."""
    return config.block.name == "parallel" and not config.block.options.get("one_norm")


# what is not given is as in Falcon 7B
KEYS = (
    DECODER,
    passed("auto_map"),  # published files name a copy of the code of this very family
    only("alibi", False, said=True),
    only("apply_residual_connection_post_layernorm", False),
    size("vocab_size", "vocab_size", 65024),
    size("hidden_size", "d_model", 4544),
    size("num_hidden_layers", "n_layers", 32),
    size("num_attention_heads", "n_heads", 71),
    size("ffn_hidden_size", "d_ff", optional=True),
    size("max_position_embeddings", "max_len", 2048),
    Key(architecture, architecture_said),
    rotary(),
    activation("activation", "gelu"),
    flag("bias", "attention.bias feed_forward.bias", False),
    norm("layer_norm_epsilon", "layernorm", 1e-5),
    number("attention_dropout", "attention.dropout", 0.0),
    number("hidden_dropout", "dropout", 0.0),
    tied(True),
)
BLOCK = "transformer.h.{n}"
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
FAMILY.register("falcon")(
    Family({"CausalLM": "FalconForCausalLM"}, KEYS, TABLE, "transformer.", BUFFERS, TIED)
)
