"""BERT (Devlin et al., 2018): post-norm, learned positions, segments, a norm on the embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyhead.hf.encoders import (
    EMBEDDING,
    LAYER,
    OLD,
    POST_NORM,
    SPECIALS,
    as_layers,
    heads,
    named,
    scores,
    ties,
)
from polyhead.hf.family import FAMILY, Family, activation
from polyhead.hf.keys import Key, fixed, norm, number, only, passed, size
from polyhead.hf.table import Row, both, one
from polyhead.hf.vocabularies import word_pieces

FIRST = {"name": "first", "activation": "tanh"}
# what is the same wherever norms stand behind
BODY = (
    POST_NORM,
    size("vocab_size", "vocab_size", 30522),
    size("hidden_size", "d_model", 768),
    size("num_hidden_layers", "n_layers", 12),
    size("num_attention_heads", "n_heads", 12),
    size("intermediate_size", "d_ff", optional=True),
    size("max_position_embeddings", "max_len", 512),
    norm("layer_norm_eps", "layernorm", 1e-12),
    number("attention_probs_dropout_prob", "attention.dropout", 0.1),
    number("hidden_dropout_prob", "dropout", 0.1),
)
SEGMENTS = size("type_vocab_size", "segments", 2)._replace(
    write=lambda config: {"type_vocab_size": max(1, config.segments)}
)


def keys(
    stem: str,
    *,
    pooled: Mapping[str, Any] = FIRST,
    bare: Mapping[str, Any] | None = FIRST,
    head: str | None = None,
    trained: str = "MaskedLM",
    pair: str | None = None,
    segments: Key = SEGMENTS,
    feed_forward: Key = activation("hidden_act", "gelu"),
) -> tuple[Key, ...]:
    """What BERT and its kin say alike, with what stands on the encoder as in ``heads``, and these rows."""
    return (
        passed("classifier_dropout", "directionality", "pooler_fc_size", "pooler_num_attention_heads"),
        passed("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
        only("position_embedding_type", "absolute"),
        only("is_decoder", False),
        only("add_cross_attention", False),
        only("pruned_heads", {}),
        heads(stem, pooled=pooled, bare=bare, head=head, trained=trained, pair=pair),
        *BODY,
        segments,
        feed_forward,
        fixed(position="learned"),
    )


PAIR = "cls.seq_relationship"
KEYS = (*keys("Bert", pair=f"{PAIR}.weight"), Key(as_layers))


def layers(prefix: str) -> tuple[Row, ...]:
    """The rows of the embeddings and layers, whose names begin so."""
    block = f"{prefix}encoder.layer.{{n}}"
    return (
        *one(f"{prefix}embeddings.word_embeddings.weight", f"{EMBEDDING}.token.weight"),
        *one(f"{prefix}embeddings.position_embeddings.weight", f"{EMBEDDING}.position.weight"),
        *one(f"{prefix}embeddings.token_type_embeddings.weight", f"{EMBEDDING}.segment.weight"),
        *both(f"{prefix}embeddings.LayerNorm", f"{EMBEDDING}.norm"),
        *both(f"{block}.attention.self.query", f"{LAYER}.attn.q_proj"),
        *both(f"{block}.attention.self.key", f"{LAYER}.attn.k_proj"),
        *both(f"{block}.attention.self.value", f"{LAYER}.attn.v_proj"),
        *both(f"{block}.attention.output.dense", f"{LAYER}.attn.o_proj"),
        *both(f"{block}.attention.output.LayerNorm", f"{LAYER}.attn_residual.norm"),
        *both(f"{block}.intermediate.dense", f"{LAYER}.ffn.up_proj"),
        *both(f"{block}.output.dense", f"{LAYER}.ffn.down_proj"),
        *both(f"{block}.output.LayerNorm", f"{LAYER}.ffn_residual.norm"),
    )


TABLE = (
    *layers("bert."),
    *both("bert.pooler.dense", "pooler.proj"),
    *both("classifier", "classifier"),
    *both("cls.predictions.transform.dense", "transform"),
    *both("cls.predictions.transform.LayerNorm", "transform_norm"),
    *both(PAIR, "follows"),
    *scores("cls.predictions"),
)
BUFFERS = r"bert\.embeddings\.(position|token_type)_ids"  # that older versions kept
FAMILY.register("bert")(
    Family(
        named("Bert") | {"PairLM": "BertForPreTraining"},
        KEYS,
        TABLE,
        "bert.",
        BUFFERS,
        ties("cls.predictions", "bert"),
        renamed=OLD,
        specials=SPECIALS,
        vocabulary=word_pieces,
        left=r"bert\.pooler\.dense\..*|cls\.seq_relationship\..*",
    )
)
