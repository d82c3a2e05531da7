"""RoBERTa (Liu et al., 2019): BERT whose positions begin after that of padding, with another classifier.

XLM-RoBERTa (Conneau et al., 2019) is the same with a vocabulary of a hundred languages, CamemBERT (Martin et al., 2019)
with one of French.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.bert import keys, layers
from polyhead.hf.encoders import OLD, named, scores, ties
from polyhead.hf.family import FAMILY, Family, Made
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, unsaid
from polyhead.hf.table import Row, both
from polyhead.hf.vocabularies import FRAMED, fairseq, framed_bytes


def positions(given: Given, fields: Fields) -> Fields:
    """Of the table of positions the rows up to that of padding are never read."""
    max_len, pad = fields["max_len"], given.values.get("pad_token_id", 1)
    if isinstance(pad, bool) or not isinstance(pad, int) or not 0 <= pad < max_len - 1:
        raise given.wrong("pad_token_id", "the id of the padding token, after which positions are counted")
    return {"max_len": max_len - pad - 1, "position": {"name": "learned", "offset": pad + 1}}


def positions_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``positions``, which count from one after padding, so one at least."""
    offset = config.position.options.get("offset") or 1
    return {"max_position_embeddings": config.max_len + offset, "pad_token_id": offset - 1}


LM_HEAD = (
    *both("lm_head.dense", "transform"),
    *both("lm_head.layer_norm", "transform_norm"),
    *scores("lm_head"),
)


def own(prefix: str) -> dict[str, tuple[Row, ...]]:
    """What stands on the encoder of one of our models alone."""
    return {
        "Classifier": (*both("classifier.dense", "pooler.proj"), *both("classifier.out_proj", "classifier")),
        "Embedder": tuple(both(f"{prefix}pooler.dense", "pooler.proj")),
    }


TABLE = (*layers("roberta."), *LM_HEAD)
BUFFERS = r"roberta\.embeddings\.(position|token_type)_ids|roberta\.pooler\.dense\..*"


def family(stem: str, vocabulary: Callable[[Path], Made] | None) -> Family:
    """Those whose classes have such names; their weights have the same."""
    return Family(
        named(stem),
        (unsaid(vocab_size=50265), *keys(stem), Key(positions, positions_said)),
        TABLE,
        "roberta.",
        BUFFERS,
        ties("lm_head", "roberta"),
        own("roberta."),
        OLD,
        FRAMED,
        vocabulary,
    )


FAMILY.register("roberta")(family("Roberta", framed_bytes))
FAMILY.register("xlm-roberta")(family("XLMRoberta", fairseq))
FAMILY.register("camembert")(family("Camembert", None))
