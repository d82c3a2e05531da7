"""Marian (Junczys-Dowmunt et al., 2018), as the translators of OPUS-MT are published."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.bart import LM_HEAD, SHARED, SOURCE, TABLE, TARGET, common, fixed, said
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    fixed(given, pre=False, embedding_norm=False, static=True)
    shared = given.flag("share_encoder_decoder_embeddings", True)
    fields = common(given)
    given.only("decoder_vocab_size", fields["vocab_size"])
    return fields | {
        "position": {"name": "sinusoidal", "layout": "halves"},
        "norm_first": False,
        "tie_embeddings": "all" if shared else "target",
    }


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    shared = config.tie_embeddings == "all"
    return said(config) | {
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": shared,
    }


BUFFERS = r"model\.(en|de)coder\.embed_positions\.weight"  # sinusoids of older files
MARIAN = FAMILY.register("marian")(
    Family(
        {"Seq2Seq": "MarianMTModel"},
        read,
        write,
        TABLE,
        "model.",
        BUFFERS,
        {SOURCE: SHARED, TARGET: SHARED, LM_HEAD: SHARED},
    )
)
