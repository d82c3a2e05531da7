"""GTE (Zhang et al., 2024): BERT with rotary positions and a gated feed-forward whose gates have no bias.

Files have the names of the authors' code, which transformers also reads and writes; the authors' own files
have the prefix ``new``.
"""

from __future__ import annotations

from polyhead.hf.config_map import constant, defaults, ignore, map_int, require
from polyhead.hf.families.bert import BODY, FIRST_POOLING
from polyhead.hf.families.encoder_common import (
    ENCODER_EMBEDDING,
    ENCODER_LAYER,
    encoder_architectures,
    map_heads,
)
from polyhead.hf.families.llama import map_rope
from polyhead.hf.family import FAMILY, HF_GATED_ACTIVATIONS, ModelFamily, map_activation
from polyhead.hf.weight_map import CONCAT, linear, weight

KEYS = (
    defaults(vocab_size=250048, max_position_embeddings=8192, rope_theta=160_000.0),
    defaults(attention_probs_dropout_prob=0.0),
    ignore("auto_map", "classifier_dropout", "unpad_inputs", "use_memory_efficient_attention"),
    require("layer_norm_type", "layer_norm"),
    require("logn_attention_clip1", False),
    require("logn_attention_scale", False),
    require("pack_qkv", True),
    require("position_embedding_type", "rope"),
    map_heads("Gte", classifier_pooling=FIRST_POOLING),
    *BODY,
    map_int("type_vocab_size", "n_segments", 1, minimum=0),
    map_rope(),
    map_activation("hidden_act", "gelu", HF_GATED_ACTIVATIONS),
    constant(feed_forward={"bias": "down"}),
)
BLOCK = "gte.encoder.layer.{n}"
TABLE = (
    *weight("gte.embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *weight("gte.embeddings.token_type_embeddings.weight", f"{ENCODER_EMBEDDING}.segment.weight"),
    *linear("gte.embeddings.LayerNorm", f"{ENCODER_EMBEDDING}.norm"),
    *linear(
        f"{BLOCK}.attention.qkv_proj",
        *(f"{ENCODER_LAYER}.attn.{part}_proj" for part in "qkv"),
        weight=CONCAT,
        bias=CONCAT,
    ),
    *linear(f"{BLOCK}.attention.o_proj", f"{ENCODER_LAYER}.attn.o_proj"),
    *linear(f"{BLOCK}.attn_ln", f"{ENCODER_LAYER}.attn_residual.norm"),
    # the second half has the activation
    *weight(
        f"{BLOCK}.mlp.up_gate_proj.weight",
        f"{ENCODER_LAYER}.ffn.up_proj.weight",
        f"{ENCODER_LAYER}.ffn.gate_proj.weight",
        transform=CONCAT,
    ),
    *linear(f"{BLOCK}.mlp.down_proj", f"{ENCODER_LAYER}.ffn.down_proj"),
    *linear(f"{BLOCK}.mlp_ln", f"{ENCODER_LAYER}.ffn_residual.norm"),
    *linear("gte.pooler.dense", "pooler.proj"),
    *linear("classifier", "classifier"),
    *linear("lm_head.dense", "transform"),
    *linear("lm_head.norm", "transform_norm"),
    *linear("lm_head.decoder", "head"),
)
# a pooler that no head reads, and the token weights that gte-multilingual-base has in addition to its
# embeddings
BUFFERS = r"gte\.pooler\.dense\..*|classifier\.(weight|bias)"
TIED = {"lm_head.decoder.weight": "gte.embeddings.word_embeddings.weight"}
FAMILY.register("gte")(
    ModelFamily(encoder_architectures("Gte"), KEYS, TABLE, "gte.", BUFFERS, TIED, legacy_prefix="new.")
)
