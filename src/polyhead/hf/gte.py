"""GTE (Zhang et al., 2024): BERT with rotary positions and a gated feed-forward, with biases but for its gates.

Files have the names of the first code of the family, which the reference reads and writes as well; those of its authors begin
with the name that it had there, ``new``.
"""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.bert import FIRST, body
from polyhead.hf.bert import said as bert_said
from polyhead.hf.encoders import EMBEDDING, LAYER, model_of, named, top
from polyhead.hf.family import FAMILY, GATED, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.llama import rope, rope_said
from polyhead.hf.table import FUSED, both, one
from polyhead.registry import Choice


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    given.passed("auto_map", "classifier_dropout", "unpad_inputs", "use_memory_efficient_attention")
    given.only("layer_norm_type", "layer_norm")
    given.only("logn_attention_clip1", False)
    given.only("logn_attention_scale", False)
    given.only("pack_qkv", True)
    given.only("position_embedding_type", "rope")
    given.assume(max_position_embeddings=8192, attention_probs_dropout_prob=0.0)
    gate, fields = GATED[given.word("hidden_act", "gelu", GATED)], body(given)
    return top(given, model_of(given, "Gte"), pooled=FIRST) | fields | {
        "vocab_size": given.size("vocab_size", 250048),
        "segments": given.size("type_vocab_size", 1, least=0),
        "position": rope(given, fields["max_len"], base=160_000.0),
        "feed_forward": Choice(gate.name, **gate.options, bias="down").written(),
    }  # fmt: skip


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return bert_said(config) | {
        "type_vocab_size": config.segments,
        "hidden_act": activation_of(config.feed_forward, GATED),
        **rope_said(config.position.options),
    }


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
GTE = FAMILY.register("gte")(Family(named("Gte"), read, write, TABLE, "gte.", BUFFERS, TIED, older="new."))
