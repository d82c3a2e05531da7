"""BERT, and DistilBERT and ALBERT, which have its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyhead.hf.config_map import (
    ConfigField,
    constant,
    defaults,
    ignore,
    map_float,
    map_int,
    map_norm,
    map_sizes,
    require,
)
from polyhead.hf.families.encoder_common import (
    BERT_SPECIAL_TOKENS,
    ENCODER_EMBEDDING,
    ENCODER_LAYER,
    LEGACY_NORM_SUFFIXES,
    POST_NORM,
    encoder_architectures,
    lm_head_rules,
    map_heads,
    post_norm_rules,
    read_head_transform,
    tied_head_weights,
)
from polyhead.hf.family import FAMILY, HEAD_WEIGHT, ModelFamily, WeightRule, linear, map_activation, weight
from polyhead.hf.tokenizers.legacy_tokenizers import load_wordpiece

# BERT (Devlin et al., 2018): post-norm, learned positions, segments, a norm on the embeddings.
FIRST_POOLING = {"name": "first", "activation": "tanh"}
# rows of all post-norm encoders
BODY = (
    POST_NORM,
    *map_sizes(vocab_size=30522, d_model=768, n_layers=12, n_heads=12, d_ff=None, max_len=512),
    map_norm("layer_norm_eps", "layernorm", 1e-12),
    map_float("attention_probs_dropout_prob", "attention.dropout", 0.1),
    map_float("hidden_dropout_prob", "dropout", 0.1),
)
SEGMENTS = map_int("type_vocab_size", "n_segments", 2)._replace(
    write=lambda config: {"type_vocab_size": max(1, config.n_segments)}
)


def bert_keys(
    class_prefix: str,
    *,
    classifier_pooling: Mapping[str, Any] = FIRST_POOLING,
    base_pooling: Mapping[str, Any] | None = FIRST_POOLING,
    head_tensor: str | None = None,
    pretrained_as: str = "MaskedLM",
    pair_tensor: str | None = None,
    segments: ConfigField = SEGMENTS,
    feed_forward: ConfigField = map_activation("hidden_act", "gelu"),
) -> tuple[ConfigField, ...]:
    """Return the rows shared by BERT and its variants. The arguments for heads are those of ``map_heads``."""
    return (
        ignore("classifier_dropout", "directionality", "pooler_fc_size", "pooler_num_attention_heads"),
        ignore("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
        require("position_embedding_type", "absolute"),
        require("is_decoder", False),
        require("add_cross_attention", False),
        require("pruned_heads", {}),
        map_heads(
            class_prefix,
            classifier_pooling=classifier_pooling,
            base_pooling=base_pooling,
            head_tensor=head_tensor,
            pretrained_as=pretrained_as,
            pair_tensor=pair_tensor,
        ),
        *BODY,
        segments,
        feed_forward,
        constant(position="learned"),
    )


PAIR = "cls.seq_relationship"
KEYS = (*bert_keys("Bert", pair_tensor=f"{PAIR}.weight"), ConfigField(read_head_transform))


def bert_layer_rules(prefix: str) -> tuple[WeightRule, ...]:
    """Return the rows of the embeddings and layers, whose names start with ``prefix``."""
    block = f"{prefix}encoder.layer.{{n}}"
    return (
        *weight(f"{prefix}embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
        *weight(f"{prefix}embeddings.position_embeddings.weight", f"{ENCODER_EMBEDDING}.position.weight"),
        *weight(f"{prefix}embeddings.token_type_embeddings.weight", f"{ENCODER_EMBEDDING}.segment.weight"),
        *linear(f"{prefix}embeddings.LayerNorm", f"{ENCODER_EMBEDDING}.norm"),
        *post_norm_rules(
            block,
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "attention.output.LayerNorm",
            "intermediate.dense",
            "output.dense",
            "output.LayerNorm",
        ),
    )


TABLE = (
    *bert_layer_rules("bert."),
    *linear("bert.pooler.dense", "pooler.proj"),
    *linear("classifier", "classifier"),
    *linear("cls.predictions.transform.dense", "transform"),
    *linear("cls.predictions.transform.LayerNorm", "transform_norm"),
    *linear(PAIR, "follows"),
    *lm_head_rules("cls.predictions"),
)
BUFFERS = r"bert\.embeddings\.(position|token_type)_ids"  # of older versions
FAMILY.register("bert")(
    ModelFamily(
        encoder_architectures("Bert") | {"NSPModel": "BertForPreTraining"},
        KEYS,
        TABLE,
        "bert.",
        BUFFERS,
        tied_head_weights("cls.predictions", "bert"),
        legacy_suffixes=LEGACY_NORM_SUFFIXES,
        special_tokens=BERT_SPECIAL_TOKENS,
        load_legacy_tokenizer=load_wordpiece,
        ignored_pattern=r"bert\.pooler\.dense\..*|cls\.seq_relationship\..*",
    )
)


# DistilBERT (Sanh et al., 2019): BERT without segments, with half of its layers, and a classifier with a
# ReLU.
DISTILBERT_KEYS = (
    # the position table is in the files
    ignore("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_"),
    ConfigField(write=lambda config: {"sinusoidal_pos_embds": False}),
    require("pruned_heads", {}),
    map_heads("DistilBert", classifier_pooling={"name": "first", "activation": "relu"}),
    POST_NORM,
    constant(position="learned", norm={"name": "layernorm", "eps": 1e-12}),
    map_int("vocab_size", "vocab_size", 30522),
    map_int("dim", "d_model", 768),
    map_int("n_layers", "n_layers", 6),
    map_int("n_heads", "n_heads", 12),
    map_int("hidden_dim", "d_ff", optional=True),
    map_int("max_position_embeddings", "max_len", 512),
    map_activation("activation", "gelu"),
    ConfigField(read_head_transform),
    map_float("attention_dropout", "attention.dropout", 0.1),
    map_float("dropout", "dropout", 0.1),
)
DISTILBERT_BLOCK = "distilbert.transformer.layer.{n}"
DISTILBERT_TABLE = (
    *weight("distilbert.embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *weight("distilbert.embeddings.position_embeddings.weight", f"{ENCODER_EMBEDDING}.position.weight"),
    *linear("distilbert.embeddings.LayerNorm", f"{ENCODER_EMBEDDING}.norm"),
    *post_norm_rules(
        DISTILBERT_BLOCK,
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
        "sa_layer_norm",
        "ffn.lin1",
        "ffn.lin2",
        "output_layer_norm",
    ),
    *linear("vocab_transform", "transform"),
    *linear("vocab_layer_norm", "transform_norm"),
    *weight("vocab_projector.bias", "head.bias"),
    *weight("vocab_projector.weight", HEAD_WEIGHT),
    *linear("pre_classifier", "pooler.proj"),
    *linear("classifier", "classifier"),
)
DISTILBERT_BUFFERS = r"distilbert\.embeddings\.position_ids"
DISTILBERT_TIED = {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}
FAMILY.register("distilbert")(
    ModelFamily(
        encoder_architectures("DistilBert"),
        DISTILBERT_KEYS,
        DISTILBERT_TABLE,
        "distilbert.",
        DISTILBERT_BUFFERS,
        DISTILBERT_TIED,
        legacy_suffixes=LEGACY_NORM_SUFFIXES,
        special_tokens=BERT_SPECIAL_TOKENS,
        load_legacy_tokenizer=load_wordpiece,
    )
)


# ALBERT (Lan et al., 2019): BERT with weights shared by all layers and a separate embedding width.
ALBERT_PAIR = "sop_classifier.classifier"
# defaults of ALBERT-xxlarge
ALBERT_KEYS = (
    defaults(hidden_size=4096, num_attention_heads=64, intermediate_size=16384, vocab_size=30000),
    defaults(hidden_act="gelu_new", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    ignore("classifier_dropout_prob", field_paths="dropout"),
    # keys that no code reads
    ignore("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor"),
    require("num_hidden_groups", 1, is_written=True),
    require("inner_group_num", 1, is_written=True),
    *bert_keys("Albert", pair_tensor=f"{ALBERT_PAIR}.weight"),
    ConfigField(read_head_transform),
    map_int("embedding_size", "d_embedding", 128)._replace(
        write=lambda config: {"embedding_size": config.embedding_width}
    ),
    constant(share_layers=True),
)
ALBERT_GROUP = "albert.encoder.albert_layer_groups.0.albert_layers.0"
ALBERT_LAYER = ENCODER_LAYER.format(n=0)
ALBERT_TABLE = (
    *weight("albert.embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *weight("albert.embeddings.position_embeddings.weight", f"{ENCODER_EMBEDDING}.position.weight"),
    *weight("albert.embeddings.token_type_embeddings.weight", f"{ENCODER_EMBEDDING}.segment.weight"),
    *linear("albert.embeddings.LayerNorm", f"{ENCODER_EMBEDDING}.norm"),
    *linear("albert.encoder.embedding_hidden_mapping_in", f"{ENCODER_EMBEDDING}.proj"),
    *post_norm_rules(
        ALBERT_GROUP,
        "attention.query",
        "attention.key",
        "attention.value",
        "attention.dense",
        "attention.LayerNorm",
        "ffn",
        "ffn_output",
        "full_layer_layer_norm",
        layer=ALBERT_LAYER,
    ),
    *linear("albert.pooler", "pooler.proj"),
    *linear("classifier", "classifier"),
    *linear("predictions.dense", "transform"),
    *linear("predictions.LayerNorm", "transform_norm"),
    *linear(ALBERT_PAIR, "follows"),
    *lm_head_rules("predictions"),
)
ALBERT_BUFFERS = r"albert\.embeddings\.(position|token_type)_ids"
ALBERT_TIED = tied_head_weights("predictions", "albert")
ALBERT_SPECIALS = BERT_SPECIAL_TOKENS | {"unk_token": "<unk>", "pad_token": "<pad>"}
FAMILY.register("albert")(
    ModelFamily(
        encoder_architectures("Albert") | {"NSPModel": "AlbertForPreTraining"},
        ALBERT_KEYS,
        ALBERT_TABLE,
        "albert.",
        ALBERT_BUFFERS,
        ALBERT_TIED,
        legacy_suffixes=LEGACY_NORM_SUFFIXES,
        special_tokens=ALBERT_SPECIALS,
        ignored_pattern=r"albert\.pooler\..*|sop_classifier\..*",
    )
)
