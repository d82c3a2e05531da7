"""BERT (Devlin et al., 2018): post-norm, learned positions, segments, a norm on the embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.encoders import EMBEDDING, LAYER, OLD, SPECIALS, labels_said, model_of, named, top
from polyhead.hf.family import FAMILY, HEAD, PLAIN, Family, activation_of, head_activation
from polyhead.hf.given import Given
from polyhead.hf.table import Row, both, one
from polyhead.hf.vocabularies import word_pieces

FIRST = {"name": "first", "activation": "tanh"}


def common(
    given: Given, model: str, *, pooled: Mapping[str, Any] = FIRST, bare: Mapping[str, Any] | None = FIRST
) -> dict[str, Any]:
    """What BERT and its kin say alike of one of our models; ``pooled`` and ``bare`` as in ``top``."""
    given.passed("classifier_dropout", "directionality", "pooler_fc_size", "pooler_num_attention_heads")
    given.passed("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type")
    given.only("position_embedding_type", "absolute")
    given.only("is_decoder", False)
    given.only("add_cross_attention", False)
    given.only("pruned_heads", {})
    fields = top(given, model, pooled=pooled, bare=bare)
    if fields.get("tie_embeddings") == "none":
        given.only("tie_word_embeddings", True)
    return (
        fields
        | body(given)
        | {
            "position": "learned",
            "segments": given.size("type_vocab_size", 2),
            "feed_forward": PLAIN[given.word("hidden_act", "gelu", PLAIN)].written(),
        }
    )


def body(given: Given) -> dict[str, Any]:
    """The sizes of embeddings and layers, and the parts that are the same wherever norms stand behind."""
    d_model = given.size("hidden_size", 768)
    return {
        "kind": "encoder",
        "d_model": d_model,
        "n_layers": given.size("num_hidden_layers", 12),
        "n_heads": given.size("num_attention_heads", 12),
        "d_ff": given.size("intermediate_size", 4 * d_model),
        "max_len": given.size("max_position_embeddings", 512),
        "attention": {"name": "softmax", "dropout": given.number("attention_probs_dropout_prob", 0.1)},
        "embedding_norm": True,
        "norm": {"name": "layernorm", "eps": given.number("layer_norm_eps", 1e-12)},
        "norm_first": False,
        "dropout": given.number("hidden_dropout_prob", 0.1),
        "scale_embedding": False,
        "init": "normal",
    }


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    return common(given, model_of(given, "Bert")) | {
        "vocab_size": given.size("vocab_size", 30522),
        "head_activation": head_activation(PLAIN[given.word("hidden_act", "gelu", PLAIN)]),
    }


def said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``common``."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "max_position_embeddings": config.max_len,
        "type_vocab_size": max(1, config.segments),
        "hidden_act": activation_of(config.feed_forward, PLAIN),
        "layer_norm_eps": config.norm.options.get("eps", 1e-12),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention.options.get("dropout", 0.0),
        "tie_word_embeddings": config.tie_embeddings != "none",
        **labels_said(config),
    }


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
    *one("cls.predictions.bias", "head.bias"),
    *one("cls.predictions.decoder.weight", HEAD),
)
# ids that older versions kept, and what stands beside the head over the vocabulary after the first training
BUFFERS = r"bert\.embeddings\.(position|token_type)_ids|bert\.pooler\.dense\..*|cls\.seq_relationship\..*"
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
BERT = FAMILY.register("bert")(
    Family(
        named("Bert"),
        read,
        said,
        TABLE,
        "bert.",
        BUFFERS,
        TIED,
        renamed=OLD,
        specials=SPECIALS,
        vocabulary=word_pieces,
    )
)
