"""ELECTRA (Clark et al., 2020): BERT without a pooler, with an optional separate embedding width.

The generator fills masks; the discriminator detects replaced tokens, and its head is ignored.
"""

from __future__ import annotations

from polyhead.hf.config_map import defaults, ignore, map_embedding_width
from polyhead.hf.families.bert import bert_keys, bert_layer_rules
from polyhead.hf.families.encoder_common import (
    BERT_SPECIAL_TOKENS,
    ENCODER_EMBEDDING,
    LEGACY_NORM_SUFFIXES,
    encoder_architectures,
)
from polyhead.hf.families.roberta import roberta_head_rules
from polyhead.hf.family import FAMILY, HEAD_WEIGHT, ModelFamily
from polyhead.hf.tokenizers.legacy_tokenizers import load_wordpiece
from polyhead.hf.weight_map import linear, weight

# defaults of ELECTRA-Small
KEYS = (
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
TABLE = (
    *bert_layer_rules("electra."),
    *linear("electra.embeddings_project", f"{ENCODER_EMBEDDING}.proj"),
    *linear("generator_predictions.dense", "transform"),
    *linear("generator_predictions.LayerNorm", "transform_norm"),
    *weight("generator_lm_head.bias", "head.bias"),
    *weight("generator_lm_head.weight", HEAD_WEIGHT),
)
MODEL_RULES = {"Classifier": roberta_head_rules("electra.")["Classifier"]}
BUFFERS = r"electra\.embeddings\.(position|token_type)_ids|discriminator_predictions\..*"
TIED = {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}
FAMILY.register("electra")(
    ModelFamily(
        encoder_architectures("Electra"),
        KEYS,
        TABLE,
        "electra.",
        BUFFERS,
        TIED,
        MODEL_RULES,
        LEGACY_NORM_SUFFIXES,
        BERT_SPECIAL_TOKENS,
        load_wordpiece,
    )
)
