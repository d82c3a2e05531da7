"""GPT-J (Wang & Komatsuzaki, 2021): parallel sub-layers after one norm, interleaved rope on part of the
features.
"""

from __future__ import annotations

import math
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import (
    DECODER,
    PARALLEL_BLOCK,
    ConfigField,
    ModelFields,
    constant,
    ignore,
    map_float,
    map_int,
    map_norm,
    map_tied_embeddings,
    require,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.gpt2 import SUMMARY
from polyhead.hf.family import (
    FAMILY,
    FINAL_NORM,
    HEAD_WEIGHT,
    STACK_LAYER,
    TOKEN_EMBEDDING,
    ModelFamily,
    map_activation,
)
from polyhead.hf.tokenizers.legacy_tokenizers import load_byte_level
from polyhead.hf.weight_map import linear, weight


def _read_rotary_dim(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read rotary_dim as a fraction that rounds back to the same number of features."""
    if reader.is_null("rotary_dim"):
        raise reader.value_error("rotary_dim", "the number of rotary features per head")
    width, head_dim = reader.get_int("rotary_dim", 64), fields["d_model"] // fields["n_heads"]
    fraction = width / max(1, head_dim)
    is_exact = int(head_dim * fraction) == width
    return {"position": {"fraction": fraction if is_exact else math.nextafter(fraction, math.inf)}}


def _write_rotary_dim(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_rotary_dim``."""
    assert config.head_dim is not None
    return {"rotary_dim": int(config.head_dim * config.position.options.get("fraction", 1.0))}


# defaults of GPT-J-6B
KEYS = (
    DECODER,
    ignore("n_ctx", "scale_attn_weights", *SUMMARY),
    require("rotary", True),
    map_int("vocab_size", "vocab_size", 50400),
    map_int("n_embd", "d_model", 4096),
    map_int("n_layer", "n_layers", 28),
    map_int("n_head", "n_heads", 16),
    map_int("n_inner", "d_ff", optional=True),
    map_int("n_positions", "max_len", 2048),
    constant(block=PARALLEL_BLOCK, attention={"bias": False}, lm_head_bias=True),
    constant(position={"name": "rope", "layout": "interleaved"}),
    ConfigField(_read_rotary_dim, _write_rotary_dim),
    map_activation("activation_function", "gelu_new"),
    map_norm("layer_norm_epsilon", "layernorm", 1e-5),
    map_float("attn_pdrop", "attention.dropout", 0.0),
    map_float("resid_pdrop", "dropout", 0.0),
    ignore("embd_pdrop", field_paths="dropout"),
    map_tied_embeddings(False),
)
BLOCK = "transformer.h.{n}"
TABLE = (
    *weight("transformer.wte.weight", TOKEN_EMBEDDING),
    *linear(f"{BLOCK}.ln_1", f"{STACK_LAYER}.attn_residual.norm"),
    *(row for x in "qkv" for row in linear(f"{BLOCK}.attn.{x}_proj", f"{STACK_LAYER}.attn.{x}_proj")),
    *linear(f"{BLOCK}.attn.out_proj", f"{STACK_LAYER}.attn.o_proj"),
    *linear(f"{BLOCK}.mlp.fc_in", f"{STACK_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.mlp.fc_out", f"{STACK_LAYER}.ffn.down_proj"),
    *linear("transformer.ln_f", FINAL_NORM),
    *weight("lm_head.weight", HEAD_WEIGHT),
    *weight("lm_head.bias", "head.bias"),
)
BUFFERS = r"transformer\.h\.\d+\.attn\.(bias|masked_bias)"
TIED = {"lm_head.weight": "transformer.wte.weight"}
FAMILY.register("gptj")(
    ModelFamily(
        {"CausalLM": "GPTJForCausalLM"},
        KEYS,
        TABLE,
        "transformer.",
        BUFFERS,
        TIED,
        load_legacy_tokenizer=load_byte_level,
    )
)
