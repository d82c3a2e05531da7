"""ALBERT (Lan et al., 2019): BERT with weights shared by all layers and a separate embedding width."""

from __future__ import annotations

from polyhead.hf.config_map import ConfigField, constant, defaults, ignore, map_int, require
from polyhead.hf.families import encoder_common
from polyhead.hf.families.bert import bert_keys
from polyhead.hf.families.encoder_common import (
    ENCODER_EMBEDDING,
    LEGACY_NORM_SUFFIXES,
    encoder_architectures,
    lm_head_rules,
    read_head_transform,
    tied_head_weights,
)
from polyhead.hf.family import FAMILY, ModelFamily
from polyhead.hf.weight_map import linear, weight

PAIR = "sop_classifier.classifier"
# defaults of ALBERT-xxlarge
KEYS = (
    defaults(hidden_size=4096, num_attention_heads=64, intermediate_size=16384, vocab_size=30000),
    defaults(hidden_act="gelu_new", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    ignore("classifier_dropout_prob", field_paths="dropout"),
    # keys that no code reads
    ignore("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor"),
    require("num_hidden_groups", 1, is_written=True),
    require("inner_group_num", 1, is_written=True),
    *bert_keys("Albert", pair_tensor=f"{PAIR}.weight"),
    ConfigField(read_head_transform),
    map_int("embedding_size", "d_embedding", 128)._replace(
        write=lambda config: {"embedding_size": config.embedding_width}
    ),
    constant(share_layers=True),
)
GROUP = "albert.encoder.albert_layer_groups.0.albert_layers.0"
LAYER = encoder_common.ENCODER_LAYER.format(n=0)
TABLE = (
    *weight("albert.embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *weight("albert.embeddings.position_embeddings.weight", f"{ENCODER_EMBEDDING}.position.weight"),
    *weight("albert.embeddings.token_type_embeddings.weight", f"{ENCODER_EMBEDDING}.segment.weight"),
    *linear("albert.embeddings.LayerNorm", f"{ENCODER_EMBEDDING}.norm"),
    *linear("albert.encoder.embedding_hidden_mapping_in", f"{ENCODER_EMBEDDING}.proj"),
    *linear(f"{GROUP}.attention.query", f"{LAYER}.attn.q_proj"),
    *linear(f"{GROUP}.attention.key", f"{LAYER}.attn.k_proj"),
    *linear(f"{GROUP}.attention.value", f"{LAYER}.attn.v_proj"),
    *linear(f"{GROUP}.attention.dense", f"{LAYER}.attn.o_proj"),
    *linear(f"{GROUP}.attention.LayerNorm", f"{LAYER}.attn_residual.norm"),
    *linear(f"{GROUP}.ffn", f"{LAYER}.ffn.up_proj"),
    *linear(f"{GROUP}.ffn_output", f"{LAYER}.ffn.down_proj"),
    *linear(f"{GROUP}.full_layer_layer_norm", f"{LAYER}.ffn_residual.norm"),
    *linear("albert.pooler", "pooler.proj"),
    *linear("classifier", "classifier"),
    *linear("predictions.dense", "transform"),
    *linear("predictions.LayerNorm", "transform_norm"),
    *linear(PAIR, "follows"),
    *lm_head_rules("predictions"),
)
BUFFERS = r"albert\.embeddings\.(position|token_type)_ids"
TIED = tied_head_weights("predictions", "albert")
SPECIALS = encoder_common.BERT_SPECIAL_TOKENS | {"unk_token": "<unk>", "pad_token": "<pad>"}
FAMILY.register("albert")(
    ModelFamily(
        encoder_architectures("Albert") | {"NSPModel": "AlbertForPreTraining"},
        KEYS,
        TABLE,
        "albert.",
        BUFFERS,
        TIED,
        legacy_suffixes=LEGACY_NORM_SUFFIXES,
        special_tokens=SPECIALS,
        ignored_pattern=r"albert\.pooler\..*|sop_classifier\..*",
    )
)
