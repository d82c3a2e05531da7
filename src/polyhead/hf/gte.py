"""GTE (Zhang et al., 2024): BERT with rotary positions and a gated feed-forward, with biases but for its gates.

Files have the names of the first code of the family, which the reference reads and writes as well; those of its authors begin
with the name that it had there, ``new``.
"""

from __future__ import annotations

from polyhead.hf.bert import BODY, FIRST
from polyhead.hf.encoders import EMBEDDING, LAYER, heads, named
from polyhead.hf.family import FAMILY, GATED, Family, activation
from polyhead.hf.keys import fixed, only, passed, size, unsaid
from polyhead.hf.llama import rotary
from polyhead.hf.table import FUSED, both, one

KEYS = (
    unsaid(vocab_size=250048, max_position_embeddings=8192, rope_theta=160_000.0),
    unsaid(attention_probs_dropout_prob=0.0),
    passed("auto_map", "classifier_dropout", "unpad_inputs", "use_memory_efficient_attention"),
    only("layer_norm_type", "layer_norm"),
    only("logn_attention_clip1", False),
    only("logn_attention_scale", False),
    only("pack_qkv", True),
    only("position_embedding_type", "rope"),
    heads("Gte", pooled=FIRST),
    *BODY,
    size("type_vocab_size", "segments", 1, least=0),
    rotary(),
    activation("hidden_act", "gelu", GATED),
    fixed(feed_forward={"bias": "down"}),
)
BLOCK = "gte.encoder.layer.{n}"
TABLE = (
    *one("gte.embeddings.word_embeddings.weight", f"{EMBEDDING}.token.weight"),
    *one("gte.embeddings.token_type_embeddings.weight", f"{EMBEDDING}.segment.weight"),
    *both("gte.embeddings.LayerNorm", f"{EMBEDDING}.norm"),
    *both(
        f"{BLOCK}.attention.qkv_proj",
        *(f"{LAYER}.attn.{part}_proj" for part in "qkv"),
        weight=FUSED,
        bias=FUSED,
    ),
    *both(f"{BLOCK}.attention.o_proj", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.attn_ln", f"{LAYER}.attn_residual.norm"),
    # the activation is that of the second half
    *one(
        f"{BLOCK}.mlp.up_gate_proj.weight",
        f"{LAYER}.ffn.up_proj.weight",
        f"{LAYER}.ffn.gate_proj.weight",
        step=FUSED,
    ),
    *both(f"{BLOCK}.mlp.down_proj", f"{LAYER}.ffn.down_proj"),
    *both(f"{BLOCK}.mlp_ln", f"{LAYER}.ffn_residual.norm"),
    *both("gte.pooler.dense", "pooler.proj"),
    *both("classifier", "classifier"),
    *both("lm_head.dense", "transform"),
    *both("lm_head.norm", "transform_norm"),
    *both("lm_head.decoder", "head"),
)
# a pooler that no head reads, and what gives tokens weights of their own beside the vectors of gte-multilingual-base
BUFFERS = r"gte\.pooler\.dense\..*|classifier\.(weight|bias)"
TIED = {"lm_head.decoder.weight": "gte.embeddings.word_embeddings.weight"}
FAMILY.register("gte")(Family(named("Gte"), KEYS, TABLE, "gte.", BUFFERS, TIED, older="new."))
