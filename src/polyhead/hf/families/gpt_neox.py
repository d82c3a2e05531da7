"""GPT-NeoX (Black et al., 2022) and Pythia: parallel sub-layers, partial rope, q, k and v interleaved by
head.
"""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import (
    DECODER,
    ConfigField,
    ModelFields,
    defaults,
    ignore,
    map_bool,
    map_float,
    map_int,
    map_norm,
    map_tied_embeddings,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.llama import read_rope, write_rope
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

THETA, FRACTION = "rotary_emb_base", "rotary_pct"


def _read_position(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read rope with the keys of this family."""
    return {"position": read_rope(reader, fields["max_len"], theta_key=THETA, fraction_key=FRACTION)}


def _write_position(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_position``."""
    values = write_rope(config.position.options, FRACTION)
    return {THETA: values["rope_theta"], **{key: values[key] for key in (FRACTION, "rope_parameters")}}


# defaults of GPT-NeoX-20B
KEYS = (
    DECODER,
    defaults(rotary_pct=0.25),
    ignore("classifier_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"),
    map_int("vocab_size", "vocab_size", 50432),
    map_int("hidden_size", "d_model", 6144),
    map_int("num_hidden_layers", "n_layers", 44),
    map_int("num_attention_heads", "n_heads", 64),
    map_int("intermediate_size", "d_ff", 24576),
    map_int("max_position_embeddings", "max_len", 2048),
    ConfigField(_read_position, _write_position),
    map_bool("use_parallel_residual", "block.name", True, true_value="parallel", false_value="transformer"),
    map_bool("attention_bias", "attention.bias", True),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_activation("hidden_act", "gelu"),
    map_norm("layer_norm_eps", "layernorm", 1e-5),
    map_float("hidden_dropout", "dropout", 0.0),
    map_tied_embeddings(False),
)
BLOCK = "gpt_neox.layers.{n}"
TABLE = (
    *weight("gpt_neox.embed_in.weight", TOKEN_EMBEDDING),
    *linear(f"{BLOCK}.input_layernorm", f"{STACK_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.attention.query_key_value", *QKV_PROJ, weight=per_head_qkv, bias=per_head_qkv),
    *linear(f"{BLOCK}.attention.dense", f"{STACK_LAYER}.attn.o_proj"),
    *linear(f"{BLOCK}.post_attention_layernorm", f"{STACK_LAYER}.ffn_residual.norm"),
    *linear(f"{BLOCK}.mlp.dense_h_to_4h", f"{STACK_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.mlp.dense_4h_to_h", f"{STACK_LAYER}.ffn.down_proj"),
    *linear("gpt_neox.final_layer_norm", FINAL_NORM),
    *weight("embed_out.weight", HEAD_WEIGHT),
)
BUFFERS = r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"
TIED = {"embed_out.weight": "gpt_neox.embed_in.weight"}
FAMILY.register("gpt_neox")(
    ModelFamily({"CausalLM": "GPTNeoXForCausalLM"}, KEYS, TABLE, "gpt_neox.", BUFFERS, TIED)
)
