"""ELECTRA (Clark et al., 2020): BERT without a pooler, whose embeddings may have a width of their own.

Two were trained together: the generator fills masks, the discriminator tells which tokens it put there. The head of the latter
is passed over.
"""

from __future__ import annotations

from polyhead.hf.bert import keys, layers
from polyhead.hf.encoders import EMBEDDING, OLD, SPECIALS, named
from polyhead.hf.family import FAMILY, HEAD, Family
from polyhead.hf.keys import passed, unsaid, width
from polyhead.hf.roberta import own
from polyhead.hf.table import both, one
from polyhead.hf.vocabularies import word_pieces

# what is not given is as in ELECTRA-Small
KEYS = (
    passed("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
    unsaid(hidden_size=256, num_attention_heads=4, intermediate_size=1024),
    *keys("Electra", trained="Embedder", pooled={"name": "first", "activation": "gelu"}, bare=None),
    width("embedding_size", 128),
)
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
FAMILY.register("electra")(
    Family(named("Electra"), KEYS, TABLE, "electra.", BUFFERS, TIED, OWN, OLD, SPECIALS, word_pieces)
)
