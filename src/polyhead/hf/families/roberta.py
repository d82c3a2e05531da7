"""RoBERTa (Liu et al., 2019): BERT whose positions begin after the padding id, with another classifier.

XLM-RoBERTa (Conneau et al., 2019) is the same with a vocabulary of a hundred languages, CamemBERT (Martin et
al., 2019) with one of French.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.config_map import ConfigField, ModelFields, defaults
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.bert import bert_keys, bert_layer_rules
from polyhead.hf.families.encoder_common import (
    LEGACY_NORM_SUFFIXES,
    encoder_architectures,
    lm_head_rules,
    tied_head_weights,
)
from polyhead.hf.family import FAMILY, ModelFamily, TokenizerFactory
from polyhead.hf.tokenizers.legacy_tokenizers import ROBERTA_SPECIAL_TOKENS, load_fairseq, load_roberta_bpe
from polyhead.hf.weight_map import WeightRule, linear


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
