"""GPT-NeoX (Black et al., 2022) and Pythia: sub-layers side by side, a part of rope, q, k and v head by head in one."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, QKV, Family, activation
from polyhead.hf.given import Given
from polyhead.hf.keys import DECODER, Fields, Key, flag, norm, number, passed, size, tied, unsaid
from polyhead.hf.llama import rope, rope_said
from polyhead.hf.table import both, head_by_head, one

THETA, FRACTION = "rotary_emb_base", "rotary_pct"


def position(given: Given, fields: Fields) -> Fields:
    """Rope, with the keys that this family has of it."""
    return {"position": rope(given, fields["max_len"], theta=THETA, fraction=FRACTION)}


def position_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``position``."""
    said = rope_said(config.position.options, FRACTION)
    return {THETA: said["rope_theta"], **{key: said[key] for key in (FRACTION, "rope_parameters")}}


# what is not given is as in GPT-NeoX-20B
KEYS = (
    DECODER,
    unsaid(rotary_pct=0.25),
    passed("classifier_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"),
    size("vocab_size", "vocab_size", 50432),
    size("hidden_size", "d_model", 6144),
    size("num_hidden_layers", "n_layers", 44),
    size("num_attention_heads", "n_heads", 64),
    size("intermediate_size", "d_ff", 24576),
    size("max_position_embeddings", "max_len", 2048),
    Key(position, position_said),
    flag("use_parallel_residual", "block.name", True, yes="parallel", no="transformer"),
    flag("attention_bias", "attention.bias", True),
    number("attention_dropout", "attention.dropout", 0.0),
    activation("hidden_act", "gelu"),
    norm("layer_norm_eps", "layernorm", 1e-5),
    number("hidden_dropout", "dropout", 0.0),
    tied(False),
)
BLOCK = "gpt_neox.layers.{n}"
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
FAMILY.register("gpt_neox")(
    Family({"CausalLM": "GPTNeoXForCausalLM"}, KEYS, TABLE, "gpt_neox.", BUFFERS, TIED)
)
