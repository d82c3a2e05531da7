"""BLOOM (Scao et al., 2022): ALiBi, a norm on the embeddings, q, k and v interleaved by head."""

from __future__ import annotations

from polyhead.hf.config_map import (
    DECODER,
    ConfigField,
    ModelFields,
    constant,
    ignore,
    map_float,
    map_int,
    map_norm,
    map_tied_embeddings,
    require,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.family import (
    FAMILY,
    FINAL_NORM,
    HEAD_WEIGHT,
    QKV_PROJ,
    STACK_LAYER,
    TOKEN_EMBEDDING,
    ModelFamily,
)
from polyhead.hf.weight_map import linear, per_head_qkv, weight


def _map_either_key(name: str, alternative: str, field: str, default: int) -> ConfigField:
    """Map a size with two possible keys."""

    def read(reader: ConfigReader, fields: ModelFields) -> ModelFields:
        key = alternative if reader.has(alternative) and not reader.has(name) else name
        return {field: reader.get_int(key, default)}

    return map_int(name, field, default)._replace(read=read)


def _check_inner_width(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Require the supported width of the feed-forward."""
    reader.require("n_inner", 4 * fields["d_model"])
    return {}


KEYS = (
    DECODER,
    require("apply_residual_connection_post_layernorm", False),
    ignore("slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion"),
    ignore("skip_bias_add", "skip_bias_add_qkv", "offset_alibi"),
    map_int("vocab_size", "vocab_size", 250880),
    _map_either_key("hidden_size", "n_embed", "d_model", 64),
    _map_either_key("n_layer", "num_hidden_layers", "n_layers", 2),
    _map_either_key("n_head", "num_attention_heads", "n_heads", 8),
    ConfigField(_check_inner_width),
    map_int("seq_length", "max_len", 2048),  # of older files; not a limit, as ALiBi has no position table
    constant(position="alibi", attention={"bias": True}, embedding_norm=True),
    constant(feed_forward={"name": "gelu", "tanh": True}),
    map_norm("layer_norm_epsilon", "layernorm", 1e-5),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_float("hidden_dropout", "dropout", 0.0),
    map_tied_embeddings(True),
)
BLOCK = "transformer.h.{n}"
TABLE = (
    *weight("transformer.word_embeddings.weight", TOKEN_EMBEDDING),
    *linear("transformer.word_embeddings_layernorm", "embedding.norm"),
    *linear(f"{BLOCK}.input_layernorm", f"{STACK_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.self_attention.query_key_value", *QKV_PROJ, weight=per_head_qkv, bias=per_head_qkv),
    *linear(f"{BLOCK}.self_attention.dense", f"{STACK_LAYER}.attn.o_proj"),
    *linear(f"{BLOCK}.post_attention_layernorm", f"{STACK_LAYER}.ffn_residual.norm"),
    *linear(f"{BLOCK}.mlp.dense_h_to_4h", f"{STACK_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.mlp.dense_4h_to_h", f"{STACK_LAYER}.ffn.down_proj"),
    *linear("transformer.ln_f", FINAL_NORM),
    *weight("lm_head.weight", HEAD_WEIGHT),
)
TIED = {"lm_head.weight": "transformer.word_embeddings.weight"}
FAMILY.register("bloom")(
    ModelFamily({"CausalLM": "BloomForCausalLM"}, KEYS, TABLE, "transformer.", tied_weights=TIED)
)
