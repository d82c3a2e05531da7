"""EuroBERT (Boizard et al., 2025): the layers of Llama, whose tokens see all of their text, and a head without a map below it."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.encoders import labels_said, model_of, named, top
from polyhead.hf.family import FAMILY, HEAD, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TIED, attention, biased, biases_said, common, divided, said
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.table import both

# ways of pooling by their published names
POOLINGS: dict[str, dict[str, Any]] = {
    "late": {"name": "mean", "activation": "gelu", "map_first": True},
    "mean": {"name": "mean", "activation": "gelu"},
    "bos": {"name": "first", "activation": "gelu"},
}


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    given.passed("auto_map", "mask_token_id", "hidden_dropout")
    given.passed("bos_token", "eos_token", "mask_token", "pad_token")  # of the first code, by name
    given.only("clf_pooling", "late")
    given.assume(
        hidden_size=768,
        intermediate_size=3072,
        num_attention_heads=12,
        num_hidden_layers=12,
        tie_word_embeddings=False,
        vocab_size=128256,
    )
    fields, model = divided(given, common(given, max_len=8192, eps=1e-5)), model_of(given, "EuroBert")
    pooled = POOLINGS[given.word("classifier_pooling", "late", POOLINGS)]
    bias = {"head_bias": given.flag("mlp_bias", False)} if model == "MaskedLM" else {}
    return fields | top(given, model, pooled=pooled) | bias | biased(given, fields) | {
        "kind": "encoder",
        "head_activation": "none",
        "map_bias": None if model == "Embedder" else True,
        **attention(given, bias=given.flag("attention_bias", False)),
    }  # fmt: skip


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    ways = {(way["name"], way.get("map_first", False)): name for name, way in POOLINGS.items()}
    pooling = config.pooling
    way = (pooling.name, pooling.options.get("map_first", False)) if pooling else ("first", False)
    return said(config) | biases_said(config) | labels_said(config) | {
        "classifier_pooling": ways.get(way, "late"),
    }  # fmt: skip


TABLE = (
    *(row._replace(ours=tuple(f"encoder.{name}" for name in row.ours)) for row in LLAMA if row.ours != (HEAD,)),
    *both("lm_head", "head"),
    *both("dense", "pooler.proj"),
    *both("classifier", "classifier"),
)  # fmt: skip
EUROBERT = FAMILY.register("eurobert")(Family(named("EuroBert"), read, write, TABLE, "model.", BUFFERS, TIED))
