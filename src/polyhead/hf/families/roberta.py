"""RoBERTa, MPNet and ELECTRA, which have its heads, and DeBERTa-v2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.config_map import (
    ConfigField,
    ConfigReader,
    ModelFields,
    constant,
    defaults,
    ignore,
    layer_choice,
    map_embedding_width,
    map_int,
    require,
)
from polyhead.hf.families.bert import BODY, bert_keys, bert_layer_rules
from polyhead.hf.families.encoder_common import (
    BERT_SPECIAL_TOKENS,
    ENCODER_EMBEDDING,
    ENCODER_LAYER,
    LEGACY_NORM_SUFFIXES,
    encoder_architectures,
    lm_head_rules,
    post_norm_rules,
    read_architecture,
    read_head_transform,
    read_heads,
    tied_head_weights,
    write_heads,
)
from polyhead.hf.family import (
    FAMILY,
    HEAD_WEIGHT,
    ModelFamily,
    TokenizerFactory,
    WeightRule,
    linear,
    map_activation,
    weight,
)
from polyhead.hf.tokenizers.legacy_tokenizers import (
    ROBERTA_SPECIAL_TOKENS,
    load_fairseq,
    load_roberta_bpe,
    load_wordpiece,
)
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS_MAP


# RoBERTa (Liu et al., 2019): BERT whose positions begin after the padding id, with another classifier.
#
# XLM-RoBERTa (Conneau et al., 2019) is the same with a vocabulary of a hundred languages, CamemBERT (Martin
# et al., 2019) with one of French.
def _read_positions(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the position table, of which the rows up to that of padding are unused."""
    max_len, pad = fields["max_len"], reader.values.get("pad_token_id", 1)
    if isinstance(pad, bool) or not isinstance(pad, int) or not 0 <= pad < max_len - 1:
        raise reader.value_error("pad_token_id", "the id of the padding token, after which positions start")
    return {"max_len": max_len - pad - 1, "position": {"name": "learned", "offset": pad + 1}}


def _write_positions(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_positions``. Positions begin after padding, so the offset is at least 1."""
    offset = config.position.options.get("offset") or 1
    return {"max_position_embeddings": config.max_len + offset, "pad_token_id": offset - 1}


LM_HEAD = (
    *linear("lm_head.dense", "transform"),
    *linear("lm_head.layer_norm", "transform_norm"),
    *lm_head_rules("lm_head"),
)


def roberta_head_rules(prefix: str) -> dict[str, tuple[WeightRule, ...]]:
    """Return the head rows of one model alone."""
    return {
        "Classifier": (
            *linear("classifier.dense", "pooler.proj"),
            *linear("classifier.out_proj", "classifier"),
        ),
        "TokenClassifier": tuple(linear("classifier", "classifier")),
        "SentenceEncoder": tuple(linear(f"{prefix}pooler.dense", "pooler.proj")),
    }


TABLE = (*bert_layer_rules("roberta."), *LM_HEAD)
BUFFERS = r"roberta\.embeddings\.(position|token_type)_ids|roberta\.pooler\.dense\..*"


def _roberta_family(
    class_prefix: str, load_legacy_tokenizer: Callable[[CheckpointFiles], TokenizerFactory] | None
) -> ModelFamily:
    """Return the family whose classes have that prefix; the weight names are the same."""
    return ModelFamily(
        encoder_architectures(class_prefix),
        (
            defaults(vocab_size=50265),
            *bert_keys(class_prefix),
            ConfigField(_read_positions, _write_positions),
        ),
        TABLE,
        "roberta.",
        BUFFERS,
        tied_head_weights("lm_head", "roberta"),
        roberta_head_rules("roberta."),
        LEGACY_NORM_SUFFIXES,
        ROBERTA_SPECIAL_TOKENS,
        load_legacy_tokenizer,
    )


FAMILY.register("roberta")(_roberta_family("Roberta", load_roberta_bpe))
FAMILY.register("xlm-roberta")(_roberta_family("XLMRoberta", load_fairseq))
FAMILY.register("camembert")(_roberta_family("Camembert", None))


# MPNet (Song et al., 2020): RoBERTa without segments, with T5's relative position bias on the scores.
PAD = 1  # positions are counted from the next row on, whatever pad_token_id is
BUCKETS = 32  # for distances up to 128, as in the code


def _read_mpnet_positions(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the position table, of which the rows up to that of padding are unused."""
    if fields["max_len"] < PAD + 2:
        raise reader.value_error(
            "max_position_embeddings", f"more than {PAD + 1}, the number of rows before the first position"
        )
    return {"max_len": fields["max_len"] - PAD - 1}


MPNET_KEYS = (
    defaults(vocab_size=30527),
    *bert_keys("MPNet", head_tensor="lm_head.bias", segments=ignore("type_vocab_size")),
    require("relative_attention_num_buckets", BUCKETS, is_written=True),
    require("pad_token_id", PAD, is_written=True),
    constant(position={"name": "learned", "offset": PAD + 1}),
    constant(layer_pattern=[{"position": {"name": "t5", "buckets": BUCKETS}}]),
    ConfigField(_read_mpnet_positions, lambda config: {"max_position_embeddings": config.max_len + PAD + 1}),
)
BLOCK = "mpnet.encoder.layer.{n}"
MPNET_TABLE = (
    *weight("mpnet.embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *weight("mpnet.embeddings.position_embeddings.weight", f"{ENCODER_EMBEDDING}.position.weight"),
    *linear("mpnet.embeddings.LayerNorm", f"{ENCODER_EMBEDDING}.norm"),
    # all layers share the bias of the first one
    *weight(
        "mpnet.encoder.relative_attention_bias.weight", f"{ENCODER_LAYER.format(n=0)}.attn.position.weight"
    ),
    *post_norm_rules(
        BLOCK,
        *(f"attention.attn.{x}" for x in "qkvo"),
        "attention.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    ),
    *LM_HEAD,
)
MPNET_BUFFERS = r"mpnet\.embeddings\.position_ids|mpnet\.pooler\.dense\..*"
SPECIALS = SPECIAL_TOKENS_MAP | {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "[UNK]"}
FAMILY.register("mpnet")(
    ModelFamily(
        encoder_architectures("MPNet"),
        MPNET_KEYS,
        MPNET_TABLE,
        "mpnet.",
        MPNET_BUFFERS,
        tied_head_weights("lm_head", "mpnet"),
        roberta_head_rules("mpnet."),
        LEGACY_NORM_SUFFIXES,
        SPECIALS,
    )
)


# ELECTRA (Clark et al., 2020): BERT without a pooler, with an optional separate embedding width.
#
# The generator fills masks; the discriminator detects replaced tokens, and its head is ignored.
# defaults of ELECTRA-Small
ELECTRA_KEYS = (
    ignore("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
    defaults(hidden_size=256, num_attention_heads=4, intermediate_size=1024),
    *bert_keys(
        "Electra",
        pretrained_as="SentenceEncoder",
        classifier_pooling={"name": "first", "activation": "gelu"},
        base_pooling=None,
    ),
    map_embedding_width("embedding_size", 128),
)
ELECTRA_TABLE = (
    *bert_layer_rules("electra."),
    *linear("electra.embeddings_project", f"{ENCODER_EMBEDDING}.proj"),
    *linear("generator_predictions.dense", "transform"),
    *linear("generator_predictions.LayerNorm", "transform_norm"),
    *weight("generator_lm_head.bias", "head.bias"),
    *weight("generator_lm_head.weight", HEAD_WEIGHT),
)
ELECTRA_MODEL_RULES = {
    name: roberta_head_rules("electra.")[name] for name in ("Classifier", "TokenClassifier")
}
ELECTRA_BUFFERS = r"electra\.embeddings\.(position|token_type)_ids|discriminator_predictions\..*"
ELECTRA_TIED = {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}
FAMILY.register("electra")(
    ModelFamily(
        encoder_architectures("Electra"),
        ELECTRA_KEYS,
        ELECTRA_TABLE,
        "electra.",
        ELECTRA_BUFFERS,
        ELECTRA_TIED,
        ELECTRA_MODEL_RULES,
        LEGACY_NORM_SUFFIXES,
        BERT_SPECIAL_TOKENS,
        load_wordpiece,
    )
)


# DeBERTa-v2 and v3 (He et al., 2021): BERT with disentangled attention to relative positions.
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


def _read_deberta_positions(reader: ConfigReader, fields: ModelFields) -> ModelFields:
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


def _write_deberta_positions(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_deberta_positions``."""
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
    ConfigField(_read_deberta_positions, _write_deberta_positions),
    map_int("type_vocab_size", "n_segments", 0, minimum=0),
    map_activation("hidden_act", "gelu"),
    ConfigField(read_head_transform),
)


def _has_absolute_positions(config: ModelConfig) -> bool:
    """Return whether positions are also added to the embeddings."""
    return config.position.name == "learned"


DEBERTA_BLOCK = "deberta.encoder.layer.{n}"
# all layers share the relative embeddings: of the embedding module if it adds no absolute positions, else
# of the first layer
FIRST_LAYER = ENCODER_LAYER.format(n=0)
DEBERTA_TABLE = (
    *weight("deberta.embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *weight(
        "deberta.embeddings.position_embeddings.weight",
        f"{ENCODER_EMBEDDING}.position.weight",
        condition=_has_absolute_positions,
    ),
    *weight("deberta.embeddings.token_type_embeddings.weight", f"{ENCODER_EMBEDDING}.segment.weight"),
    *linear("deberta.embeddings.LayerNorm", f"{ENCODER_EMBEDDING}.norm"),
    *weight(
        "deberta.encoder.rel_embeddings.weight",
        f"{ENCODER_EMBEDDING}.position.weight",
        condition=lambda config: not _has_absolute_positions(config),
    ),
    *weight("deberta.encoder.rel_embeddings.weight", f"{FIRST_LAYER}.attn.position.weight"),
    *linear("deberta.encoder.LayerNorm", f"{ENCODER_EMBEDDING}.position.norm"),
    *linear("deberta.encoder.LayerNorm", f"{FIRST_LAYER}.attn.position.norm"),
    *post_norm_rules(
        DEBERTA_BLOCK,
        "attention.self.query_proj",
        "attention.self.key_proj",
        "attention.self.value_proj",
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    ),
    *linear("pooler.dense", "pooler.proj"),
    *linear("classifier", "classifier"),
    *linear("cls.predictions.transform.dense", "transform"),
    *linear("cls.predictions.transform.LayerNorm", "transform_norm"),
    *lm_head_rules("cls.predictions"),
)
# absolute positions of models without them, and heads of pre-training: masked tokens and replaced tokens
DEBERTA_BUFFERS = (
    r"deberta\.embeddings\.position_.*|cls\.predictions\..*|lm_predictions\..*|mask_predictions\..*"
)
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
        DEBERTA_TABLE,
        "deberta.",
        DEBERTA_BUFFERS,
        TIED,
        legacy_suffixes=LEGACY_SUFFIXES,
        special_tokens=BERT_SPECIAL_TOKENS,
    )
)
