"""EuroBERT (Boizard et al., 2025): the layers of Llama, whose tokens see all of their text, and a head without a map below it."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.encoders import labels_said, model_of, named, top
from polyhead.hf.family import FAMILY, HEAD, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, only, passed, unsaid
from polyhead.hf.llama import BIASES, BUFFERS, DIVIDED, TIED, keys
from polyhead.hf.llama import TABLE as LLAMA
from polyhead.hf.table import both

# ways of pooling by their published names
POOLINGS: dict[str, dict[str, Any]] = {
    "late": {"name": "mean", "activation": "gelu", "map_first": True},
    "mean": {"name": "mean", "activation": "gelu"},
    "bos": {"name": "first", "activation": "gelu"},
}


def model(given: Given, fields: Fields) -> Fields:
    """What stands on the encoder; of a head over the vocabulary the bias is the feed-forwards'."""
    model = model_of(given, "EuroBert")
    pooled = POOLINGS[given.word("classifier_pooling", "late", POOLINGS)]
    return {
        "kind": "encoder",
        "map_bias": None if model == "Embedder" else True,
        **top(given, model, pooled=pooled),
        **({"head_bias": given.flag("mlp_bias", False)} if model == "MaskedLM" else {}),
    }


def model_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``model``."""
    ways = {(way["name"], way.get("map_first", False)): name for name, way in POOLINGS.items()}
    pooling = config.pooling
    way = (pooling.name, pooling.options.get("map_first", False)) if pooling else ("first", False)
    return labels_said(config) | {"classifier_pooling": ways.get(way, "late")}


KEYS = (
    unsaid(hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=12),
    unsaid(vocab_size=128256, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=False),
    passed("auto_map", "mask_token_id", "hidden_dropout"),
    passed("bos_token", "eos_token", "mask_token", "pad_token"),  # of the first code, by name
    only("clf_pooling", "late"),
    *keys(),
    DIVIDED,
    *BIASES,
    fixed(head_activation="none"),
    Key(model, model_said),
)
TABLE = (
    *(row._replace(ours=tuple(f"encoder.{name}" for name in row.ours)) for row in LLAMA if row.ours != (HEAD,)),
    *both("lm_head", "head"),
    *both("dense", "pooler.proj"),
    *both("classifier", "classifier"),
)  # fmt: skip
FAMILY.register("eurobert")(Family(named("EuroBert"), KEYS, TABLE, "model.", BUFFERS, TIED))
