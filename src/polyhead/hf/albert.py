"""ALBERT (Lan et al., 2019): BERT whose layers have the same weights, and whose embeddings have a width of their own."""

from __future__ import annotations

from polyhead.hf import encoders
from polyhead.hf.bert import keys
from polyhead.hf.encoders import EMBEDDING, OLD, as_layers, named, scores, ties
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.keys import Key, fixed, only, passed, size, unsaid
from polyhead.hf.table import both, one

PAIR = "sop_classifier.classifier"
# what is not given is as in ALBERT-xxlarge
KEYS = (
    unsaid(hidden_size=4096, num_attention_heads=64, intermediate_size=16384, vocab_size=30000),
    unsaid(hidden_act="gelu_new", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    passed("classifier_dropout_prob", places="dropout"),
    # read by no code
    passed("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor"),
    only("num_hidden_groups", 1, said=True),
    only("inner_group_num", 1, said=True),
    *keys("Albert", pair=f"{PAIR}.weight"),
    Key(as_layers),
    size("embedding_size", "d_embedding", 128)._replace(
        write=lambda config: {"embedding_size": config.embedding_width}
    ),
    fixed(share_layers=True),
)
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
    *both(PAIR, "follows"),
    *scores("predictions"),
)
BUFFERS = r"albert\.embeddings\.(position|token_type)_ids"
TIED = ties("predictions", "albert")
SPECIALS = encoders.SPECIALS | {"unk_token": "<unk>", "pad_token": "<pad>"}
FAMILY.register("albert")(
    Family(
        named("Albert") | {"PairLM": "AlbertForPreTraining"},
        KEYS,
        TABLE,
        "albert.",
        BUFFERS,
        TIED,
        renamed=OLD,
        specials=SPECIALS,
        left=r"albert\.pooler\..*|sop_classifier\..*",
    )
)
