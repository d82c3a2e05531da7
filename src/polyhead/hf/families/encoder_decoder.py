"""transformers' EncoderDecoderModel (Rothe et al., 2020): BERT with BERT or GPT-2, RoBERTa with RoBERTa."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.core.errors import format_value
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.config_map import ConfigField, ConfigReader, ModelFields, read_fields, write_fields
from polyhead.hf.families import bert, gpt2, roberta
from polyhead.hf.families.encoder_common import ENCODER_EMBEDDING, ENCODER_LAYER, LEGACY_NORM_SUFFIXES
from polyhead.hf.family import (
    CONCAT,
    CONCAT_TRANSPOSE,
    FAMILY,
    STACK_LAYER,
    TOKEN_EMBEDDING,
    TRANSPOSE,
    ModelFamily,
    TokenizerFactory,
    WeightRule,
    linear,
)
from polyhead.hf.tokenizers.legacy_tokenizers import load_roberta_bpe, load_wordpiece

# fields of a model that its encoder has of its own; BERT's are also post-norm and norms of embeddings
_ENCODER_FIELDS = ("d_model", "n_heads", "d_ff", "norm", "feed_forward", "n_segments", "dropout",
                   "norm_first", "embedding_norm")  # fmt: skip
_DECODERS = {"bert": ("bert", "gpt2"), "roberta": ("roberta",)}  # model_type of the encoder -> of the decoder
# field that both sides have in common -> its key
_COMMON_FIELDS = {"position": "pad_token_id", "max_len": "max_position_embeddings"}


def _decoder_type(config: ModelConfig) -> str:
    """Return model_type of the decoder: GPT-2 is pre-norm, and RoBERTa has rows before its first position."""
    return "gpt2" if config.norm_first else "roberta" if config.position.options.get("offset") else "bert"


def _read_side(reader: ConfigReader, side: str, model_types: Iterable[str]) -> ConfigReader:
    """Return the config of one side, of a supported type. The weights show its head, not its architecture."""
    section = reader.get_section(side) or ConfigReader({}, f"{reader.location}: {side}")
    section.get_choice("model_type", "", model_types)
    section.values.pop("architectures", None)
    return section


def _require_cross_attention(decoder: ConfigReader) -> None:
    """Require the keys of a causal decoder with cross-attention; GPT-2 is causal without one."""
    for key in ("add_cross_attention", *(["is_decoder"] if decoder.values["model_type"] != "gpt2" else [])):
        if decoder.values.get(key) is not True:
            raise decoder.value_error(key, "true")
        del decoder.values[key]


def _read(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read both configs; the sizes and parts of the encoder are those that it has of its own."""
    source = _read_side(reader, "encoder", _DECODERS)
    target = _read_side(reader, "decoder", _DECODERS[source.values["model_type"]])
    _require_cross_attention(target)
    encoder, decoder = (
        read_fields(FAMILY.get(side.values["model_type"]).config_map, side) for side in (source, target)
    )
    is_gpt2 = target.values["model_type"] == "gpt2"
    for side in (source, target):
        side.reject_unknown()
    for field, key in _COMMON_FIELDS.items():
        if encoder[field] != decoder[field]:
            expected = f"{format_value(source.values.get(key, encoder[field]))}, as that of the encoder"
            raise target.value_error("n_positions" if is_gpt2 and field == "max_len" else key, expected)
    is_tied = target.get_bool("tie_word_embeddings", True)
    own = {field: encoder[field] for field in _ENCODER_FIELDS}
    if encoder["vocab_size"] != decoder["vocab_size"]:
        own["vocab_size"] = encoder["vocab_size"]
    is_projected = encoder["d_model"] != decoder["d_model"]
    has_own = any(value != decoder.get(field) for field, value in own.items())
    return decoder | {
        "kind": "encoder-decoder",
        "tie_embeddings": "target" if is_tied else "none",
        "lm_head": True,
        "lm_head_bias": not is_gpt2,
        "head_transform": not is_gpt2,
        "pooling": None,
        "n_layers": encoder["n_layers"],
        "n_decoder_layers": decoder["n_layers"],
        "attention": encoder["attention"],
        "decoder_attention": decoder["attention"],
        "cross_attention": decoder["attention"],
        "encoder": own | {"projection": is_projected} if has_own else None,
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read``."""
    decoder_type = _decoder_type(config)
    encoder_type = next(name for name, decoders in _DECODERS.items() if decoder_type in decoders)
    decoder_changes = {
        "n_layers": config.decoder_layers,
        "attention": config.decoder_attention or config.attention,
    }
    sides = {
        "encoder": (encoder_type, config.encoder_spec, {}),
        "decoder": (
            decoder_type,
            config.model_copy(update=decoder_changes),
            {"is_decoder": True, "add_cross_attention": True},
        ),
    }
    return {"is_encoder_decoder": True} | {
        side: write_fields(FAMILY.get(name).config_map, spec) | {"model_type": name} | keys
        for side, (name, spec, keys) in sides.items()
    }


def _rename_rows(
    rows: Iterable[WeightRule], hf_prefix: str, renames: dict[str, str], decoder_types: Collection[str]
) -> list[WeightRule]:
    """Return the rows of a model as those of a side, for decoders of these types: with a prefix, and
    parameters that are renamed.
    """

    def rename(name: str) -> str:
        start = next((start for start in renames if name.startswith(start)), "")
        return renames.get(start, "") + name.removeprefix(start)

    def rename_row(row: WeightRule) -> WeightRule:
        return WeightRule(
            f"{hf_prefix}{row.hf_name}",
            tuple(map(rename, row.param_names)),
            row.transform,
            lambda config: _decoder_type(config) in decoder_types and row.condition(config),
        )

    return list(map(rename_row, rows))


def _cross_rules(prefix: str) -> list[WeightRule]:
    """Return the rows of cross-attention in the layers of BERT or RoBERTa."""
    names = {"self.query": "cross.q_proj", "self.key": "cross.k_proj", "self.value": "cross.v_proj",
             "output.dense": "cross.o_proj", "output.LayerNorm": "cross_residual.norm"}  # fmt: skip
    block = f"{prefix}.encoder.layer.{{n}}.crossattention"
    return [
        row
        for hf_name, name in names.items()
        for row in linear(f"{block}.{hf_name}", f"{ENCODER_LAYER}.{name}")
    ]


_GPT2_CROSS = "transformer.h.{n}.crossattention"
_GPT2_TABLE = (
    *gpt2.TABLE,
    *linear("transformer.h.{n}.ln_cross_attn", f"{STACK_LAYER}.cross_residual.norm"),
    *linear(f"{_GPT2_CROSS}.q_attn", f"{STACK_LAYER}.cross.q_proj", weight=TRANSPOSE),
    *linear(
        f"{_GPT2_CROSS}.c_attn", f"{STACK_LAYER}.cross.k_proj", f"{STACK_LAYER}.cross.v_proj",
        weight=CONCAT_TRANSPOSE, bias=CONCAT,
    ),
    *linear(f"{_GPT2_CROSS}.c_proj", f"{STACK_LAYER}.cross.o_proj", weight=TRANSPOSE),
)  # fmt: skip
_ENCODER_NAMES = {ENCODER_EMBEDDING: "encoder_embedding", "encoder.stack": "encoder"}
_DECODER_NAMES = {ENCODER_EMBEDDING: "decoder_embedding", "encoder.stack": "decoder"}
_GPT2_NAMES = {TOKEN_EMBEDDING.split(".")[0]: "decoder_embedding", "stack": "decoder"}
_TABLE = (
    *_rename_rows(bert.bert_layer_rules(""), "encoder.", _ENCODER_NAMES, ("bert", "roberta", "gpt2")),
    *_rename_rows((*bert.TABLE, *_cross_rules("bert")), "decoder.", _DECODER_NAMES, ("bert",)),
    *_rename_rows((*roberta.TABLE, *_cross_rules("roberta")), "decoder.", _DECODER_NAMES, ("roberta",)),
    *_rename_rows(_GPT2_TABLE, "decoder.", _GPT2_NAMES, ("gpt2",)),
    *linear("enc_to_dec_proj", "encoder_proj"),
)
_DECODER_FAMILIES = [FAMILY.get(name) for name in ("bert", "roberta", "gpt2")]
_DECODER_BUFFERS = "|".join(family.buffer_pattern for family in _DECODER_FAMILIES)


def _load_tokenizer(files: CheckpointFiles) -> TokenizerFactory:
    """Build the tokenizer of BERT from vocab.txt, else that of RoBERTa."""
    return (load_wordpiece if files.find("vocab.txt") else load_roberta_bpe)(files)


FAMILY.register("encoder-decoder")(
    ModelFamily(
        {"Seq2Seq": "EncoderDecoderModel"},
        (ConfigField(_read, _write),),
        _TABLE,
        "",
        rf"encoder\.embeddings\.(position|token_type)_ids|decoder\.({_DECODER_BUFFERS})",
        {
            f"decoder.{name}": f"decoder.{of}"
            for family in _DECODER_FAMILIES
            for name, of in family.tied_weights.items()
        },
        legacy_suffixes=LEGACY_NORM_SUFFIXES,
        load_legacy_tokenizer=_load_tokenizer,
        ignored_pattern=r"encoder\.pooler\..*",  # the decoder reads the output of the layers
    )
)
