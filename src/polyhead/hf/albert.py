"""ALBERT (Lan et al., 2019): BERT whose layers have the same weights, and whose embeddings have a width of their own."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf import encoders
from polyhead.hf.bert import common, said
from polyhead.hf.encoders import EMBEDDING, OLD, model_of, named
from polyhead.hf.family import FAMILY, HEAD, PLAIN, Family, head_activation
from polyhead.hf.given import Given
from polyhead.hf.table import both, one


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in ALBERT-xxlarge."""
    given.passed("classifier_dropout_prob")
    # read by no code
    given.passed("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor")
    given.assume(hidden_size=4096, num_attention_heads=64, intermediate_size=16384, hidden_act="gelu_new")
    given.assume(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    given.only("num_hidden_groups", 1)
    given.only("inner_group_num", 1)
    return common(given, model_of(given, "Albert")) | {
        "vocab_size": given.size("vocab_size", 30000),
        "d_embedding": given.size("embedding_size", 128),
        "share_layers": True,
        "head_activation": head_activation(PLAIN[given.word("hidden_act", "gelu_new", PLAIN)]),
    }


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return said(config) | {
        "embedding_size": config.embedding_width,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "classifier_dropout_prob": config.dropout,
    }


GROUP = "albert.encoder.albert_layer_groups.0.albert_layers.0"
LAYER = encoders.LAYER.format(n=0)
TABLE = (
    *one("albert.embeddings.word_embeddings.weight", f"{EMBEDDING}.token.weight"),
    *one("albert.embeddings.position_embeddings.weight", f"{EMBEDDING}.position.weight"),
    *one("albert.embeddings.token_type_embeddings.weight", f"{EMBEDDING}.segment.weight"),
    *both("albert.embeddings.LayerNorm", f"{EMBEDDING}.norm"),
    *both("albert.encoder.embedding_hidden_mapping_in", f"{EMBEDDING}.proj"),
    *both(f"{GROUP}.attention.query", f"{LAYER}.attn.q_proj"),
    *both(f"{GROUP}.attention.key", f"{LAYER}.attn.k_proj"),
    *both(f"{GROUP}.attention.value", f"{LAYER}.attn.v_proj"),
    *both(f"{GROUP}.attention.dense", f"{LAYER}.attn.o_proj"),
    *both(f"{GROUP}.attention.LayerNorm", f"{LAYER}.attn_residual.norm"),
    *both(f"{GROUP}.ffn", f"{LAYER}.ffn.up_proj"),
    *both(f"{GROUP}.ffn_output", f"{LAYER}.ffn.down_proj"),
    *both(f"{GROUP}.full_layer_layer_norm", f"{LAYER}.ffn_residual.norm"),
    *both("albert.pooler", "pooler.proj"),
    *both("classifier", "classifier"),
    *both("predictions.dense", "transform"),
    *both("predictions.LayerNorm", "transform_norm"),
    *one("predictions.bias", "head.bias"),
    *one("predictions.decoder.weight", HEAD),
)
# what stands beside the head over the vocabulary after the first training, for the order of texts
BUFFERS = r"albert\.embeddings\.(position|token_type)_ids|albert\.pooler\..*|sop_classifier\..*"
TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}
SPECIALS = encoders.SPECIALS | {"unk_token": "<unk>", "pad_token": "<pad>"}
ALBERT = FAMILY.register("albert")(
    Family(named("Albert"), read, write, TABLE, "albert.", BUFFERS, TIED, renamed=OLD, specials=SPECIALS)
)
