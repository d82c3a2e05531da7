"""Gemma (2024): Llama with a GELU gate, scaled embeddings, and zero-centered norm weights."""

from __future__ import annotations

from polyhead.hf.config_map import ConfigField, ModelFields, constant, defaults, map_bool, require
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.llama import BUFFERS, TABLE, TIED, llama_keys
from polyhead.hf.family import FAMILY, ModelFamily

TANH = "gelu_pytorch_tanh"


def _read_gelu(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read "gelu" as its tanh form, as transformers does."""
    reader.require("hidden_activation", TANH)  # of files of 2024; transformers reads hidden_act
    if reader.values["hidden_act"] == "gelu":
        reader.values["hidden_act"] = TANH
    return {}


KEYS = (
    defaults(hidden_size=3072, num_hidden_layers=28, num_attention_heads=16, head_dim=256, hidden_act=TANH),
    defaults(max_position_embeddings=8192, tie_word_embeddings=True),
    require("use_bidirectional_attention", False),
    ConfigField(_read_gelu),
    *llama_keys(kv_heads=16),
    constant(norm={"zero_centered": True}, scale_embedding=True),
    map_bool("attention_bias", "attention.bias", False),
)
FAMILY.register("gemma")(ModelFamily({"CausalLM": "GemmaForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
