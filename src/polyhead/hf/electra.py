"""ELECTRA (Clark et al., 2020): BERT without a pooler, whose embeddings may have a width of their own.

Two were trained together: the generator fills masks, the discriminator tells which tokens it put there. The head of the latter
is passed over.
"""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.bert import common, layers, said
from polyhead.hf.encoders import EMBEDDING, OLD, SPECIALS, model_of, named
from polyhead.hf.family import FAMILY, HEAD, Family
from polyhead.hf.given import Given
from polyhead.hf.roberta import own
from polyhead.hf.table import both, one
from polyhead.hf.vocabularies import word_pieces

POOLED = {"name": "first", "activation": "gelu"}


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in ELECTRA-Small."""
    given.passed("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")
    given.assume(hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    fields = common(given, model_of(given, "Electra", trained="Embedder"), pooled=POOLED, bare=None)
    width = given.size("embedding_size", 128)
    return fields | {
        "vocab_size": given.size("vocab_size", 30522),
        "d_embedding": None if width == fields["d_model"] else width,
    }


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return said(config) | {"embedding_size": config.embedding_width}


TABLE = (
    *layers("electra."),
    *both("electra.embeddings_project", f"{EMBEDDING}.proj"),
    *both("generator_predictions.dense", "transform"),
    *both("generator_predictions.LayerNorm", "transform_norm"),
    *one("generator_lm_head.bias", "head.bias"),
    *one("generator_lm_head.weight", HEAD),
)
OWN = {"Classifier": own("electra.")["Classifier"]}
BUFFERS = r"electra\.embeddings\.(position|token_type)_ids|discriminator_predictions\..*"
TIED = {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}
ELECTRA = FAMILY.register("electra")(
    Family(named("Electra"), read, write, TABLE, "electra.", BUFFERS, TIED, OWN, OLD, SPECIALS, word_pieces)
)
