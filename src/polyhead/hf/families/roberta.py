"""RoBERTa, and MPNet and ELECTRA, which have its heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.config_map import (
    ConfigField,
    ModelFields,
    constant,
    defaults,
    ignore,
    map_embedding_width,
    require,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.bert import bert_keys, bert_layer_rules
from polyhead.hf.families.encoder_common import (
    BERT_SPECIAL_TOKENS,
    ENCODER_EMBEDDING,
    ENCODER_LAYER,
    LEGACY_NORM_SUFFIXES,
    encoder_architectures,
    lm_head_rules,
    tied_head_weights,
)
from polyhead.hf.family import FAMILY, HEAD_WEIGHT, ModelFamily, TokenizerFactory
from polyhead.hf.tokenizers.legacy_tokenizers import (
    ROBERTA_SPECIAL_TOKENS,
    load_fairseq,
    load_roberta_bpe,
    load_wordpiece,
)
from polyhead.hf.weight_map import WeightRule, linear, weight
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
    ConfigField(
        _read_mpnet_positions,
        lambda config: {"max_position_embeddings": config.max_len + PAD + 1},
    ),
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
    *(row for x in "qkvo" for row in linear(f"{BLOCK}.attention.attn.{x}", f"{ENCODER_LAYER}.attn.{x}_proj")),
    *linear(f"{BLOCK}.attention.LayerNorm", f"{ENCODER_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.intermediate.dense", f"{ENCODER_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.output.dense", f"{ENCODER_LAYER}.ffn.down_proj"),
    *linear(f"{BLOCK}.output.LayerNorm", f"{ENCODER_LAYER}.ffn_residual.norm"),
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
ELECTRA_MODEL_RULES = {"Classifier": roberta_head_rules("electra.")["Classifier"]}
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
