"""DistilBERT (Sanh et al., 2019): BERT without segments, with half of its layers, and a classifier with a ReLU."""

from __future__ import annotations

from polyhead.hf.encoders import EMBEDDING, LAYER, OLD, POST_NORM, SPECIALS, as_layers, heads, named
from polyhead.hf.family import FAMILY, HEAD, Family, activation
from polyhead.hf.keys import Key, fixed, number, only, passed, size
from polyhead.hf.table import both, one
from polyhead.hf.vocabularies import word_pieces

KEYS = (
    # the table of positions is in the file
    passed("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_"),
    Key(write=lambda config: {"sinusoidal_pos_embds": False}),
    only("pruned_heads", {}),
    heads("DistilBert", pooled={"name": "first", "activation": "relu"}),
    POST_NORM,
    fixed(position="learned", norm={"name": "layernorm", "eps": 1e-12}),
    size("vocab_size", "vocab_size", 30522),
    size("dim", "d_model", 768),
    size("n_layers", "n_layers", 6),
    size("n_heads", "n_heads", 12),
    size("hidden_dim", "d_ff", optional=True),
    size("max_position_embeddings", "max_len", 512),
    activation("activation", "gelu"),
    Key(as_layers),
    number("attention_dropout", "attention.dropout", 0.1),
    number("dropout", "dropout", 0.1),
)
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
FAMILY.register("distilbert")(
    Family(
        named("DistilBert"),
        KEYS,
        TABLE,
        "distilbert.",
        BUFFERS,
        TIED,
        renamed=OLD,
        specials=SPECIALS,
        vocabulary=word_pieces,
    )
)
