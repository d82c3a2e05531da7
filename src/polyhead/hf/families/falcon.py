"""Falcon (Almazrouei et al., 2023): multi-query or grouped attention, parallel sub-layers after one norm or
two, rope.
"""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import (
    DECODER,
    ConfigField,
    ModelFields,
    ignore,
    map_bool,
    map_float,
    map_int,
    map_norm,
    map_tied_embeddings,
    require,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.llama import map_rope
from polyhead.hf.family import (
    FAMILY,
    FINAL_NORM,
    HEAD_WEIGHT,
    QKV_PROJ,
    STACK_LAYER,
    TOKEN_EMBEDDING,
    ModelFamily,
    map_activation,
)
from polyhead.hf.weight_map import linear, per_head_qkv, weight


def _read_architecture(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the old or the new decoder architecture.

    The new one, of 40B and Falcon 2, has any number of key/value heads and one norm or two; the old one has a
    single norm if its sub-layers are parallel.
    """
    is_new, is_parallel = (
        reader.get_bool("new_decoder_architecture", False),
        reader.get_bool("parallel_attn", True),
    )
    multi_query, n_kv_heads = (
        reader.get_bool("multi_query", True),
        reader.get_int("num_kv_heads", fields["n_heads"]),
    )
    if is_new:
        reader.require("parallel_attn", True)
    norms = reader.get_int("num_ln_in_parallel_attn", 2 if is_new else 1)
    if norms > 2 or norms == 2 > 1 + is_new:
        raise reader.value_error("num_ln_in_parallel_attn", "1, or 2 with new_decoder_architecture")
    return {
        "n_kv_heads": n_kv_heads if is_new else 1 if multi_query else fields["n_heads"],
        "block": {"name": "parallel", "one_norm": norms == 1} if is_parallel else "transformer",
    }


def _write_architecture(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_architecture``: the new architecture only where the old one does not suffice."""
    is_parallel, has_two_norms = config.block.name == "parallel", _has_two_norms(config)
    return {
        "num_kv_heads": config.kv_heads,
        "new_decoder_architecture": is_parallel
        and (has_two_norms or config.kv_heads not in (1, config.n_heads)),
        "multi_query": config.kv_heads == 1,
        "parallel_attn": is_parallel,
        "num_ln_in_parallel_attn": 2 if has_two_norms else 1,
    }


def _has_two_norms(config: ModelConfig) -> bool:
    """Return whether parallel sub-layers have one norm each."""
    return config.block.name == "parallel" and not config.block.options.get("one_norm")


# defaults of Falcon 7B
KEYS = (
    DECODER,
    ignore("auto_map"),  # refers to a copy of this family's code
    require("alibi", False, is_written=True),
    require("apply_residual_connection_post_layernorm", False),
    map_int("vocab_size", "vocab_size", 65024),
    map_int("hidden_size", "d_model", 4544),
    map_int("num_hidden_layers", "n_layers", 32),
    map_int("num_attention_heads", "n_heads", 71),
    map_int("ffn_hidden_size", "d_ff", optional=True),
    map_int("max_position_embeddings", "max_len", 2048),
    ConfigField(_read_architecture, _write_architecture),
    map_rope(),
    map_activation("activation", "gelu"),
    map_bool("bias", "attention.bias feed_forward.bias", False),
    map_norm("layer_norm_epsilon", "layernorm", 1e-5),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_float("hidden_dropout", "dropout", 0.0),
    map_tied_embeddings(True),
)
BLOCK = "transformer.h.{n}"
NORMS = {True: ("ln_attn", "ln_mlp"), False: ("input_layernorm", "post_attention_layernorm")}
TABLE = (
    *weight("transformer.word_embeddings.weight", TOKEN_EMBEDDING),
    *linear(f"{BLOCK}.self_attention.query_key_value", *QKV_PROJ, weight=per_head_qkv, bias=per_head_qkv),
    *linear(f"{BLOCK}.self_attention.dense", f"{STACK_LAYER}.attn.o_proj"),
    *(
        row._replace(condition=lambda config, two=two: _has_two_norms(config) == two)  # type: ignore[misc]
        for two, names in NORMS.items()
        for name, residual in zip(names, ("attn", "ffn"), strict=True)
        for row in linear(f"{BLOCK}.{name}", f"{STACK_LAYER}.{residual}_residual.norm")
    ),
    *linear(f"{BLOCK}.mlp.dense_h_to_4h", f"{STACK_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.mlp.dense_4h_to_h", f"{STACK_LAYER}.ffn.down_proj"),
    *linear("transformer.ln_f", FINAL_NORM),
    *weight("lm_head.weight", HEAD_WEIGHT),
)
BUFFERS = r"transformer\.h\.\d+\.self_attention\.rotary_emb\.inv_freq"
TIED = {"lm_head.weight": "transformer.word_embeddings.weight"}
FAMILY.register("falcon")(
    ModelFamily({"CausalLM": "FalconForCausalLM"}, KEYS, TABLE, "transformer.", BUFFERS, TIED)
)
