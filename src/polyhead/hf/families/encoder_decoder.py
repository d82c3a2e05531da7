"""transformers' EncoderDecoderModel (Rothe et al., 2020), with BERT as encoder and GPT-2 as decoder."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.core.errors import format_value
from polyhead.hf.config_map import ConfigField, ConfigReader, ModelFields, read_fields, write_fields
from polyhead.hf.families import bert, gpt2
from polyhead.hf.families.encoder_common import ENCODER_EMBEDDING, LEGACY_NORM_SUFFIXES
from polyhead.hf.family import (
    CONCAT,
    CONCAT_TRANSPOSE,
    FAMILY,
    TOKEN_EMBEDDING,
    TRANSPOSE,
    ModelFamily,
    WeightRule,
    linear,
)

# fields of a model that its encoder has of its own; BERT's are also post-norm and norms of embeddings
_ENCODER_FIELDS = ("d_model", "n_heads", "d_ff", "norm", "feed_forward", "n_segments", "dropout",
                   "norm_first", "embedding_norm")  # fmt: skip
_EQUAL_FIELDS = {"vocab_size": "vocab_size", "max_len": "n_positions"}


def _read_side(reader: ConfigReader, side: str, model_type: str) -> ConfigReader:
    """Return the config of one side, of the only supported type."""
    section = reader.get_section(side) or ConfigReader({}, f"{reader.location}: {side}")
    section.require("model_type", model_type)
    return section


def _read(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read both configs; the sizes and parts of the encoder are those that it has of its own."""
    sides = _read_side(reader, "encoder", "bert"), _read_side(reader, "decoder", "gpt2")
    if sides[1].values.pop("add_cross_attention", False) is not True:
        raise sides[1].value_error("add_cross_attention", "true")
    encoder, decoder = (
        read_fields(keys, side) for keys, side in zip((bert.KEYS, gpt2.KEYS), sides, strict=True)
    )
    for side in sides:
        side.reject_unknown()
    for field, key in _EQUAL_FIELDS.items():
        if encoder[field] != decoder[field]:
            expected = f"{format_value(encoder[field])}, as that of the encoder"
            raise sides[1].value_error(key, expected)
    own = {field: encoder[field] for field in _ENCODER_FIELDS}
    return decoder | {
        "kind": "encoder-decoder",
        "tie_embeddings": "target" if decoder["tie_embeddings"] == "all" else "none",
        "n_layers": encoder["n_layers"],
        "n_decoder_layers": decoder["n_layers"],
        "attention": encoder["attention"],
        "decoder_attention": decoder["attention"],
        "cross_attention": decoder["attention"],
        "encoder": own | {"projection": encoder["d_model"] != decoder["d_model"]},
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read``."""
    encoder = config.encoder_spec.model_copy(update={"kind": "encoder"})
    decoder = config.model_copy(
        update={
            "kind": "decoder",
            "n_layers": config.decoder_layers,
            "attention": config.decoder_attention or config.attention,
            "tie_embeddings": "all" if config.tie_embeddings == "target" else "none",
        }
    )
    cross = {"model_type": "gpt2", "is_decoder": True, "add_cross_attention": True}
    return {
        "encoder": write_fields(bert.KEYS, encoder) | {"model_type": "bert"},
        "decoder": write_fields(gpt2.KEYS, decoder) | cross,
        "is_encoder_decoder": True,
    }


def _rename_rows(rows: tuple[WeightRule, ...], hf_prefix: str, renames: dict[str, str]) -> list[WeightRule]:
    """Return the rows of a model as those of a side: with a prefix, and parameters that are renamed."""

    def rename(name: str) -> str:
        start = next((start for start in renames if name.startswith(start)), "")
        return renames.get(start, "") + name.removeprefix(start)

    return [
        row._replace(hf_name=f"{hf_prefix}{row.hf_name}", param_names=tuple(map(rename, row.param_names)))
        for row in rows
    ]


_BLOCK, _LAYER = "decoder.transformer.h.{n}", "decoder.layers.{n}"
_TABLE = (
    *_rename_rows(
        bert.bert_layer_rules(""),
        "encoder.",
        {ENCODER_EMBEDDING: "encoder_embedding", "encoder.stack": "encoder"},
    ),
    *_rename_rows(
        gpt2.TABLE, "decoder.", {TOKEN_EMBEDDING.split(".")[0]: "decoder_embedding", "stack": "decoder"}
    ),
    *linear(f"{_BLOCK}.ln_cross_attn", f"{_LAYER}.cross_residual.norm"),
    *linear(f"{_BLOCK}.crossattention.q_attn", f"{_LAYER}.cross.q_proj", weight=TRANSPOSE),
    *linear(
        f"{_BLOCK}.crossattention.c_attn", f"{_LAYER}.cross.k_proj", f"{_LAYER}.cross.v_proj",
        weight=CONCAT_TRANSPOSE, bias=CONCAT,
    ),
    *linear(f"{_BLOCK}.crossattention.c_proj", f"{_LAYER}.cross.o_proj", weight=TRANSPOSE),
    *linear("enc_to_dec_proj", "encoder_proj"),
)  # fmt: skip
FAMILY.register("encoder-decoder")(
    ModelFamily(
        {"Seq2Seq": "EncoderDecoderModel"},
        (ConfigField(_read, _write),),
        _TABLE,
        "",
        tied_weights={"decoder.lm_head.weight": "decoder.transformer.wte.weight"},
        legacy_suffixes=LEGACY_NORM_SUFFIXES,
        ignored_pattern=r"encoder\.pooler\..*",  # the decoder reads the output of the layers
    )
)
