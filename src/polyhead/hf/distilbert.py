"""DistilBERT (Sanh et al., 2019): BERT without segments, with half of its layers, and a classifier with a ReLU."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.encoders import EMBEDDING, LAYER, OLD, SPECIALS, labels_said, model_of, named, top
from polyhead.hf.family import FAMILY, HEAD, PLAIN, Family, activation_of, head_activation
from polyhead.hf.given import Given
from polyhead.hf.table import both, one
from polyhead.hf.vocabularies import word_pieces


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    # the table of positions is in the file
    given.passed("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds")
    given.passed("tie_weights_")
    given.only("pruned_heads", {})
    fields = top(given, model_of(given, "DistilBert"), pooled={"name": "first", "activation": "relu"})
    activation = PLAIN[given.word("activation", "gelu", PLAIN)]
    d_model = given.size("dim", 768)
    return fields | {
        "kind": "encoder",
        "vocab_size": given.size("vocab_size", 30522),
        "d_model": d_model,
        "n_layers": given.size("n_layers", 6),
        "n_heads": given.size("n_heads", 12),
        "d_ff": given.size("hidden_dim", 4 * d_model),
        "max_len": given.size("max_position_embeddings", 512),
        "attention": {"name": "softmax", "dropout": given.number("attention_dropout", 0.1)},
        "position": "learned",
        "embedding_norm": True,
        "norm": {"name": "layernorm", "eps": 1e-12},
        "norm_first": False,
        "feed_forward": activation.written(),
        "head_activation": head_activation(activation),
        "dropout": given.number("dropout", 0.1),
        "scale_embedding": False,
        "init": "normal",
    }


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return {
        "vocab_size": config.vocab_size,
        "dim": config.d_model,
        "n_layers": config.n_layers,
        "n_heads": config.n_heads,
        "hidden_dim": config.d_ff,
        "max_position_embeddings": config.max_len,
        "activation": activation_of(config.feed_forward, PLAIN),
        "dropout": config.dropout,
        "attention_dropout": config.attention.options.get("dropout", 0.0),
        "sinusoidal_pos_embds": False,
        "tie_word_embeddings": config.tie_embeddings != "none",
        **labels_said(config),
    }


BLOCK = "distilbert.transformer.layer.{n}"
TABLE = (
    *one("distilbert.embeddings.word_embeddings.weight", f"{EMBEDDING}.token.weight"),
    *one("distilbert.embeddings.position_embeddings.weight", f"{EMBEDDING}.position.weight"),
    *both("distilbert.embeddings.LayerNorm", f"{EMBEDDING}.norm"),
    *both(f"{BLOCK}.attention.q_lin", f"{LAYER}.attn.q_proj"),
    *both(f"{BLOCK}.attention.k_lin", f"{LAYER}.attn.k_proj"),
    *both(f"{BLOCK}.attention.v_lin", f"{LAYER}.attn.v_proj"),
    *both(f"{BLOCK}.attention.out_lin", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.sa_layer_norm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.ffn.lin1", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.ffn.lin2", f"{LAYER}.ffn.down_proj"),
    *both(f"{BLOCK}.output_layer_norm", f"{LAYER}.ffn_residual.norm"),
    *both("vocab_transform", "transform"),
    *both("vocab_layer_norm", "transform_norm"),
    *one("vocab_projector.bias", "head.bias"),
    *one("vocab_projector.weight", HEAD),
    *both("pre_classifier", "pooler.proj"),
    *both("classifier", "classifier"),
)
BUFFERS = r"distilbert\.embeddings\.position_ids"
TIED = {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}
DISTILBERT = FAMILY.register("distilbert")(
    Family(
        named("DistilBert"),
        read,
        write,
        TABLE,
        "distilbert.",
        BUFFERS,
        TIED,
        renamed=OLD,
        specials=SPECIALS,
        vocabulary=word_pieces,
    )
)
