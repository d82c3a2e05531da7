"""BERT (Devlin et al., 2018): post-norm, learned positions, segments, a norm on the embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyhead.hf.config_map import ConfigField, constant, ignore, map_float, map_int, map_norm, require
from polyhead.hf.families.encoder_common import (
    BERT_SPECIAL_TOKENS,
    ENCODER_EMBEDDING,
    ENCODER_LAYER,
    LEGACY_NORM_SUFFIXES,
    POST_NORM,
    encoder_architectures,
    lm_head_rules,
    map_heads,
    read_head_transform,
    tied_head_weights,
)
from polyhead.hf.family import FAMILY, ModelFamily, map_activation
from polyhead.hf.tokenizers.legacy_tokenizers import load_wordpiece
from polyhead.hf.weight_map import WeightRule, linear, weight

FIRST_POOLING = {"name": "first", "activation": "tanh"}
# rows of all post-norm encoders
BODY = (
    POST_NORM,
    map_int("vocab_size", "vocab_size", 30522),
    map_int("hidden_size", "d_model", 768),
    map_int("num_hidden_layers", "n_layers", 12),
    map_int("num_attention_heads", "n_heads", 12),
    map_int("intermediate_size", "d_ff", optional=True),
    map_int("max_position_embeddings", "max_len", 512),
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
        *linear(f"{block}.attention.self.query", f"{ENCODER_LAYER}.attn.q_proj"),
        *linear(f"{block}.attention.self.key", f"{ENCODER_LAYER}.attn.k_proj"),
        *linear(f"{block}.attention.self.value", f"{ENCODER_LAYER}.attn.v_proj"),
        *linear(f"{block}.attention.output.dense", f"{ENCODER_LAYER}.attn.o_proj"),
        *linear(f"{block}.attention.output.LayerNorm", f"{ENCODER_LAYER}.attn_residual.norm"),
        *linear(f"{block}.intermediate.dense", f"{ENCODER_LAYER}.ffn.up_proj"),
        *linear(f"{block}.output.dense", f"{ENCODER_LAYER}.ffn.down_proj"),
        *linear(f"{block}.output.LayerNorm", f"{ENCODER_LAYER}.ffn_residual.norm"),
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
