"""M2M100 (Fan et al., 2020) and NLLB, translators of many languages whose tokens say which is which."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.bart import BUFFERS, TABLE, TIED, common, fixed, said
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. The first position is the one after that of padding's id."""
    fixed(given, pre=True, embedding_norm=False, static=True)
    fields = common(given, activation="relu", scaled=True)
    offset = int(given.number("pad_token_id", 1)) + 1
    return fields | {
        "position": {"name": "sinusoidal", "layout": "halves", "endpoint": True, "offset": offset},
        "norm_first": True,
        "head_bias": False,
    }


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return said(config) | {"pad_token_id": config.position.options.get("offset", 1) - 1}


OLD = BUFFERS + r"|model\.(en|de)coder\.embed_positions\.weights"  # sinusoids of older files
M2M100 = FAMILY.register("m2m_100")(
    Family({"Seq2Seq": "M2M100ForConditionalGeneration"}, read, write, TABLE, "model.", OLD, TIED)
)
