"""DistilBERT (Sanh et al., 2019): BERT without segments, with half of its layers, and a classifier with a
ReLU.
"""

from __future__ import annotations

from polyhead.hf.config_map import ConfigField, constant, ignore, map_float, map_int, require
from polyhead.hf.families.encoder_common import (
    BERT_SPECIAL_TOKENS,
    ENCODER_EMBEDDING,
    ENCODER_LAYER,
    LEGACY_NORM_SUFFIXES,
    POST_NORM,
    encoder_architectures,
    map_heads,
    read_head_transform,
)
from polyhead.hf.family import FAMILY, HEAD_WEIGHT, ModelFamily, map_activation
from polyhead.hf.tokenizers.legacy_tokenizers import load_wordpiece
from polyhead.hf.weight_map import linear, weight

KEYS = (
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
BLOCK = "distilbert.transformer.layer.{n}"
TABLE = (
    *weight("distilbert.embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *weight("distilbert.embeddings.position_embeddings.weight", f"{ENCODER_EMBEDDING}.position.weight"),
    *linear("distilbert.embeddings.LayerNorm", f"{ENCODER_EMBEDDING}.norm"),
    *linear(f"{BLOCK}.attention.q_lin", f"{ENCODER_LAYER}.attn.q_proj"),
    *linear(f"{BLOCK}.attention.k_lin", f"{ENCODER_LAYER}.attn.k_proj"),
    *linear(f"{BLOCK}.attention.v_lin", f"{ENCODER_LAYER}.attn.v_proj"),
    *linear(f"{BLOCK}.attention.out_lin", f"{ENCODER_LAYER}.attn.o_proj"),
    *linear(f"{BLOCK}.sa_layer_norm", f"{ENCODER_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.ffn.lin1", f"{ENCODER_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.ffn.lin2", f"{ENCODER_LAYER}.ffn.down_proj"),
    *linear(f"{BLOCK}.output_layer_norm", f"{ENCODER_LAYER}.ffn_residual.norm"),
    *linear("vocab_transform", "transform"),
    *linear("vocab_layer_norm", "transform_norm"),
    *weight("vocab_projector.bias", "head.bias"),
    *weight("vocab_projector.weight", HEAD_WEIGHT),
    *linear("pre_classifier", "pooler.proj"),
    *linear("classifier", "classifier"),
)
BUFFERS = r"distilbert\.embeddings\.position_ids"
TIED = {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}
FAMILY.register("distilbert")(
    ModelFamily(
        encoder_architectures("DistilBert"),
        KEYS,
        TABLE,
        "distilbert.",
        BUFFERS,
        TIED,
        legacy_suffixes=LEGACY_NORM_SUFFIXES,
        special_tokens=BERT_SPECIAL_TOKENS,
        load_legacy_tokenizer=load_wordpiece,
    )
)
