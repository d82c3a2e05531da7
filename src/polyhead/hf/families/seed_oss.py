"""Seed-OSS (ByteDance, 2025): Llama with biases in q, k and v, and separately in the output projection."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import ConfigField, ModelFields, defaults, map_bool, map_float
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.llama import BUFFERS, TABLE, TIED, llama_keys
from polyhead.hf.family import FAMILY, ModelFamily

BIASES = {(True, True): True, (True, False): "qkv", (False, True): "o", (False, False): False}


def _read_head_dim(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read head_dim: 128 by default, as in Seed-OSS 36B; null means d_model / n_heads."""
    if not reader.is_null("head_dim"):
        reader.set_defaults(head_dim=128)
    return {}


def _read_biases(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the biases of q, k and v, and those of the output projection."""
    qkv_bias, out_bias = reader.get_bool("attention_bias", True), reader.get_bool("attention_out_bias", False)
    return {"attention": {"bias": BIASES[qkv_bias, out_bias]}}


def _write_biases(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_biases``."""
    bias = config.attention.options.get("bias", True)
    return {"attention_bias": bias in (True, "qkv"), "attention_out_bias": bias in (True, "o")}


# defaults of Seed-OSS 36B
KEYS = (
    defaults(num_hidden_layers=64, num_attention_heads=80, attention_dropout=0.1),
    defaults(max_position_embeddings=524_288),
    ConfigField(_read_head_dim),
    *llama_keys(kv_heads=8),
    ConfigField(_read_biases, _write_biases),
    map_bool("mlp_bias", "feed_forward.bias", False),
    map_float("residual_dropout", "dropout", 0.1),
)
FAMILY.register("seed_oss")(
    ModelFamily({"CausalLM": "SeedOssForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED)
)
