"""MPT (MosaicML, 2023): ALiBi, layer norms, no biases, q, k and v in one matrix."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
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
    decoder_rules,
    register_decoder,
)
from polyhead.hf.weight_map import CONCAT

# keys of training, or of equivalent implementations
_UNREAD_KEYS = """
    auto_map embedding_fraction emb_pdrop init_config init_device learned_pos_emb tokenizer_name verbose
""".split()  # noqa: SIM905
# options of the authors' code that transformers reads and does not implement
_REQUIRED_VALUES = {"attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False,
    "attn_uses_sequence_id": False,
        "alibi": True, "alibi_bias_max": 8}  # fmt: skip


def _read_attention(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read attn_config."""
    section = reader.get_section("attn_config")
    if section is None:
        return {}
    section.ignore("attn_impl")
    for key, value in _REQUIRED_VALUES.items():
        section.require(key, value)
    if section.has("clip_qkv"):
        raise section.value_error("clip_qkv", "null, the only supported value")
    options = {"dropout": section.get_float("attn_pdrop", 0.0)}
    if section.has("softmax_scale"):
        options["scale"] = section.get_float("softmax_scale")
    section.reject_unknown()
    return {"attention": options}


def _write_attention(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_attention``. transformers accepts only an integer dropout, so it is 0."""
    scale = config.attention.options.get("scale")
    return {"attn_config": _REQUIRED_VALUES | {"attn_pdrop": 0, "softmax_scale": scale, "clip_qkv": None}}


def _check_unsupported(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Reject values that are not supported."""
    reader.get_choice("norm_type", "low_precision_layernorm", ["low_precision_layernorm", "layernorm"])
    if reader.has("logit_scale"):
        raise reader.value_error("logit_scale", "null, the only supported value")
    return {}


# defaults of transformers
KEYS = (
    DECODER,
    ignore(*_UNREAD_KEYS),
    ConfigField(_check_unsupported),
    require("expansion_ratio", 4, is_written=True),
    require("no_bias", True, is_written=True),
    map_int("vocab_size", "vocab_size", 50368),
    map_int("d_model", "d_model", 2048),
    map_int("n_layers", "n_layers", 24),
    map_int("n_heads", "n_heads", 16),
    map_int("max_seq_len", "max_len", 2048),
    constant(position="alibi", attention={"bias": False}),
    constant(feed_forward={"name": "gelu", "tanh": False, "bias": False}),
    ConfigField(_read_attention, _write_attention),
    map_norm("layer_norm_epsilon", "layernorm", 1e-5),
    constant(norm={"bias": False}),
    map_float("resid_pdrop", "dropout", 0.0),
    map_tied_embeddings(True),
)
TABLE = decoder_rules(
    "transformer.blocks.{n}",
    embedding="transformer.wte",
    norms=("norm_1", "norm_2"),
    qkv="attn.Wqkv",
    output="attn.out_proj",
    feed_forward=("ffn.up_proj", "ffn.down_proj"),
    final_norm="transformer.norm_f",
    qkv_weight=CONCAT,
    qkv_bias=CONCAT,
)
register_decoder("mpt", "MptForCausalLM", KEYS, TABLE, "transformer.wte")
