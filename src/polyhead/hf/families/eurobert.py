"""EuroBERT (Boizard et al., 2025): Llama layers with bidirectional attention, no transform in the head."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import ConfigField, ModelFields, constant, defaults, ignore, require
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.encoder_common import (
    encoder_architectures,
    read_architecture,
    read_heads,
    write_labels,
)
from polyhead.hf.families.llama import BIASES, BUFFERS, DIVISIBLE_HEADS, TIED, llama_keys
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.family import FAMILY, HEAD_WEIGHT, ModelFamily
from polyhead.hf.weight_map import linear

# poolings by their Hugging Face name
POOLINGS: dict[str, dict[str, Any]] = {
    "late": {"name": "mean", "activation": "gelu", "map_first": True},
    "mean": {"name": "mean", "activation": "gelu"},
    "bos": {"name": "first", "activation": "gelu"},
}


def _read_heads(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the heads. The bias of a vocabulary head follows that of the feed-forward."""
    model = read_architecture(reader, "EuroBert")
    pooling = POOLINGS[reader.get_choice("classifier_pooling", "late", POOLINGS)]
    return {
        "kind": "encoder",
        "head_transform_bias": None if model == "SentenceEncoder" else True,
        **read_heads(reader, model, classifier_pooling=pooling),
        **({"lm_head_bias": reader.get_bool("mlp_bias", False)} if model == "MaskedLM" else {}),
    }


def _write_heads(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_heads``."""
    names = {(choice["name"], choice.get("map_first", False)): name for name, choice in POOLINGS.items()}
    pooling = config.pooling
    choice = (pooling.name, pooling.options.get("map_first", False)) if pooling else ("first", False)
    return write_labels(config) | {"classifier_pooling": names.get(choice, "late")}


KEYS = (
    defaults(hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=12),
    defaults(vocab_size=128256, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=False),
    ignore("auto_map", "mask_token_id", "hidden_dropout"),
    # of the authors' code, tokens instead of ids
    ignore("bos_token", "eos_token", "mask_token", "pad_token"),
    require("clf_pooling", "late"),
    *llama_keys(),
    DIVISIBLE_HEADS,
    *BIASES,
    constant(head_transform_activation="none"),
    ConfigField(_read_heads, _write_heads),
)
TABLE = (
    *(row._replace(param_names=tuple(f"encoder.{name}" for name in row.param_names)) for row in LLAMA
        if row.param_names != (HEAD_WEIGHT,)),
    *linear("lm_head", "head"),
    *linear("dense", "pooler.proj"),
    *linear("classifier", "classifier"),
)  # fmt: skip
FAMILY.register("eurobert")(
    ModelFamily(encoder_architectures("EuroBert"), KEYS, TABLE, "model.", BUFFERS, TIED)
)
