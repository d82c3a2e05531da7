"""Gemma 3 (2025), text models: Gemma 2 with normed queries and keys, and separate rope for full-attention
layers.

EmbeddingGemma is the encoder: attention is bidirectional, with a window to both sides.
"""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import ConfigField, ModelFields, defaults, ignore, map_float
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.gemma2 import COMMON_KEYS, TABLE
from polyhead.hf.families.layer_types import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    build_pattern,
    parse_layer_types,
    read_window,
    write_windows,
)
from polyhead.hf.families.llama import BUFFERS, TIED, map_qk_norm
from polyhead.hf.families.rope_per_layer_type import read_ropes, write_ropes
from polyhead.hf.family import FAMILY, ModelFamily

# keys of older files
THETAS = {FULL_ATTENTION: ("rope_theta", 1_000_000.0), SLIDING_ATTENTION: ("rope_local_base_freq", 10_000.0)}
BASE_CLASS = "Gemma3TextModel"


def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types: by default all but every sixth layer have a window.

    The window of an encoder is the total width of both sides.
    """
    if reader.has("attn_logit_softcapping"):
        raise reader.value_error("attn_logit_softcapping", "null; the reference implementation ignores it")
    period, is_encoder = (
        reader.get_int("sliding_window_pattern", 6),
        reader.get_bool("use_bidirectional_attention", False),
    )
    positions = read_ropes(reader, THETAS, fields["max_len"])
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: (layer + 1) % period > 0)
    overrides: dict[str, ModelFields] = {FULL_ATTENTION: {}}
    if SLIDING_ATTENTION in kinds:
        size = read_window(reader)
        window = size // 2 + 1 if is_encoder else size  # to one side, including the token itself
        overrides[SLIDING_ATTENTION] = {
            "attention": fields["attention"] | {"window": window},
            "position": positions[SLIDING_ATTENTION],
        }
    if is_encoder:
        reader.require("architectures", [BASE_CLASS])
    return {
        **({"kind": "encoder", "lm_head": False} if is_encoder else {}),
        "position": positions[FULL_ATTENTION],
        "layer_pattern": build_pattern(kinds, overrides),
    }


def _write_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_layer_types``, with the keys of older readers as well."""
    values = write_windows(config, config.max_len)
    is_encoder, window = config.kind == "encoder", write_windows(config)["sliding_window"]
    if is_encoder and window is not None:
        values["sliding_window"] = max(1, 2 * (window - 1))
    kinds = values["layer_types"]
    lengths = range(1, len(kinds) + 2)
    periods = [
        n
        for n in lengths
        if kinds == [SLIDING_ATTENTION if (i + 1) % n else FULL_ATTENTION for i in range(len(kinds))]
    ]
    return values | {
        **({"sliding_window_pattern": periods[0]} if periods else {}),
        **write_ropes(config, THETAS, kinds),
        "use_bidirectional_attention": is_encoder,
    }


KEYS = (
    defaults(max_position_embeddings=131_072),
    ignore("_sliding_window_pattern", "attn_logit_softcapping", "sliding_window"),
    *COMMON_KEYS,
    map_qk_norm("zero_centered"),
    map_float("final_logit_softcapping", "logit_softcap", optional=True),
    ConfigField(_read_layer_types, _write_layer_types),
)
FAMILY.register("gemma3_text")(
    ModelFamily(
        {"CausalLM": "Gemma3ForCausalLM", "SentenceEncoder": BASE_CLASS}, KEYS, TABLE, "model.", BUFFERS, TIED
    )
)
