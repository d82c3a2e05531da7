"""DeBERTa-v2 and v3 (He et al., 2021): BERT with disentangled attention to relative positions."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import ConfigField, ModelFields, defaults, ignore, map_int, require
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.bert import BODY
from polyhead.hf.families.encoder_common import (
    BERT_SPECIAL_TOKENS,
    ENCODER_EMBEDDING,
    ENCODER_LAYER,
    encoder_architectures,
    lm_head_rules,
    read_architecture,
    read_head_transform,
    read_heads,
    tied_head_weights,
    write_heads,
)
from polyhead.hf.families.layer_types import layer_choice
from polyhead.hf.family import FAMILY, ModelFamily, map_activation
from polyhead.hf.weight_map import linear, weight

TERMS = {"both": ["p2c", "c2p"], "c2p": ["c2p"], "p2c": ["p2c"]}
POOLED_ACTIVATIONS = ("gelu", "tanh", "relu")


def _check_widths(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Require the supported values of widths."""
    reader.require("embedding_size", fields["d_model"])
    reader.require("pooler_hidden_size", fields["d_model"])
    reader.require("attention_head_size", fields["d_model"] // fields["n_heads"])
    return {}


def _read_heads(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the heads. The head over the vocabulary has two forms; that of ``legacy`` false has no matrix of
    its own.
    """
    pooling = {
        "name": "first",
        "activation": reader.get_choice("pooler_hidden_act", "gelu", POOLED_ACTIVATIONS),
    }
    tied = {} if reader.get_bool("legacy", True) else {"tie_embeddings": "all"}
    return read_heads(reader, read_architecture(reader, "DebertaV2"), classifier_pooling=pooling) | tied


def _read_positions(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read relative positions in each layer, with or without absolute positions in the embeddings."""
    relative = _read_distances(reader, fields["max_len"], fields["norm"]["eps"]) | {
        "dropout": fields["dropout"]
    }
    has_absolute = reader.get_bool("position_biased_input", True)
    return {
        "position": "learned" if has_absolute else relative,
        "layer_pattern": [{"position": relative}] if has_absolute else [],
    }


def _read_distances(reader: ConfigReader, max_len: int, eps: float) -> dict[str, Any]:
    """Read the position scheme of the layers."""
    for key in ("relative_attention", "share_att_key"):
        if not reader.get_bool(key, False):
            raise reader.value_error(key, "true, the only supported value")
    reader.ignore("pos_att_type")
    value = reader.values.get("pos_att_type")
    term_names = [word.strip() for word in value.lower().split("|")] if isinstance(value, str) else value
    terms = next(
        (
            name
            for name, parts in TERMS.items()
            if isinstance(term_names, list) and {*map(str, term_names)} == {*parts}
        ),
        None,
    )
    if terms is None:
        raise reader.value_error("pos_att_type", "'p2c|c2p', 'p2c' or 'c2p'")
    farthest = reader.get_int("max_relative_positions", -1, minimum=-1)
    farthest = farthest if farthest > 0 else max_len
    buckets = reader.get_int("position_buckets", -1, minimum=-1)
    has_norm = reader.get_choice("norm_rel_ebd", "none", ["none", "layer_norm"]) == "layer_norm"
    return {
        "name": "disentangled",
        "span": buckets if buckets > 0 else farthest,
        "max_distance": farthest if buckets > 0 else None,
        "terms": terms,
        "norm_eps": eps if has_norm else None,
    }


def _write_positions(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_positions``."""
    vectors = layer_choice(config, "position", 0).options
    span, farthest = vectors.get("span", 256), vectors.get("max_distance")
    return {
        "relative_attention": True,
        "share_att_key": True,
        "pos_att_type": TERMS[vectors.get("terms", "both")],
        "position_biased_input": config.position.name == "learned",
        "max_relative_positions": farthest or span,
        "position_buckets": span if farthest else -1,
        "norm_rel_ebd": "none" if vectors.get("norm_eps") is None else "layer_norm",
    }


def _write_heads(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_heads``."""
    activation = (
        config.pooling.options.get("activation") if config.pooling else "tanh" if config.labels else "gelu"
    )
    return write_heads(config) | {
        "pooler_hidden_act": activation if activation in POOLED_ACTIVATIONS else "gelu",
        "pooler_hidden_size": config.d_model,
        "pooler_dropout": 0,
        "legacy": True,
    }


# defaults of DeBERTa-v2-XLarge
KEYS = (
    defaults(hidden_size=1536, num_hidden_layers=24, num_attention_heads=24, intermediate_size=6144),
    defaults(vocab_size=128100, layer_norm_eps=1e-7),
    # dropout of the heads, and keys that no code reads
    ignore("pooler_dropout", "cls_dropout", "classifier_dropout", "conv_act", "conv_groups"),
    ignore("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
    require("conv_kernel_size", 0),
    *BODY,
    ConfigField(_check_widths),
    ConfigField(_read_heads, _write_heads),
    ConfigField(_read_positions, _write_positions),
    map_int("type_vocab_size", "n_segments", 0, minimum=0),
    map_activation("hidden_act", "gelu"),
    ConfigField(read_head_transform),
)


def _has_absolute_positions(config: ModelConfig) -> bool:
    """Return whether positions are also added to the embeddings."""
    return config.position.name == "learned"


BLOCK = "deberta.encoder.layer.{n}"
# all layers share the relative embeddings: of the embedding module if it adds no absolute positions, else
# of the first layer
FIRST_LAYER = ENCODER_LAYER.format(n=0)
TABLE = (
    *weight("deberta.embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *weight("deberta.embeddings.position_embeddings.weight", f"{ENCODER_EMBEDDING}.position.weight",
        condition=_has_absolute_positions),
    *weight("deberta.embeddings.token_type_embeddings.weight", f"{ENCODER_EMBEDDING}.segment.weight"),
    *linear("deberta.embeddings.LayerNorm", f"{ENCODER_EMBEDDING}.norm"),
    *weight("deberta.encoder.rel_embeddings.weight", f"{ENCODER_EMBEDDING}.position.weight",
        condition=lambda config: not _has_absolute_positions(config)),
    *weight("deberta.encoder.rel_embeddings.weight", f"{FIRST_LAYER}.attn.position.weight"),
    *linear("deberta.encoder.LayerNorm", f"{ENCODER_EMBEDDING}.position.norm"),
    *linear("deberta.encoder.LayerNorm", f"{FIRST_LAYER}.attn.position.norm"),
    *linear(f"{BLOCK}.attention.self.query_proj", f"{ENCODER_LAYER}.attn.q_proj"),
    *linear(f"{BLOCK}.attention.self.key_proj", f"{ENCODER_LAYER}.attn.k_proj"),
    *linear(f"{BLOCK}.attention.self.value_proj", f"{ENCODER_LAYER}.attn.v_proj"),
    *linear(f"{BLOCK}.attention.output.dense", f"{ENCODER_LAYER}.attn.o_proj"),
    *linear(f"{BLOCK}.attention.output.LayerNorm", f"{ENCODER_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.intermediate.dense", f"{ENCODER_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.output.dense", f"{ENCODER_LAYER}.ffn.down_proj"),
    *linear(f"{BLOCK}.output.LayerNorm", f"{ENCODER_LAYER}.ffn_residual.norm"),
    *linear("pooler.dense", "pooler.proj"),
    *linear("classifier", "classifier"),
    *linear("cls.predictions.transform.dense", "transform"),
    *linear("cls.predictions.transform.LayerNorm", "transform_norm"),
    *lm_head_rules("cls.predictions"),
)  # fmt: skip
# absolute positions of models without them, and heads of pre-training: masked tokens and replaced tokens
BUFFERS = r"deberta\.embeddings\.position_.*|cls\.predictions\..*|lm_predictions\..*|mask_predictions\..*"
TIED = tied_head_weights("cls.predictions", "deberta")
AUTHORS_HEAD = "lm_predictions.lm_head"  # name of the head in the authors' files
LEGACY_SUFFIXES = {
    **{f"{AUTHORS_HEAD}.{name}.{end}": f"cls.predictions.transform.{name}.{end}" for name in ("dense",
        "LayerNorm") for end in ("weight", "bias")},
    f"{AUTHORS_HEAD}.bias": "cls.predictions.bias",
}  # fmt: skip
FAMILY.register("deberta-v2")(
    ModelFamily(
        encoder_architectures("DebertaV2"),
        KEYS,
        TABLE,
        "deberta.",
        BUFFERS,
        TIED,
        legacy_suffixes=LEGACY_SUFFIXES,
        special_tokens=BERT_SPECIAL_TOKENS,
    )
)
