"""GPT-Neo (Black et al., 2021): GPT-2 with a window in every second layer, unscaled scores, few biases."""

from __future__ import annotations

from itertools import islice
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import (
    DECODER,
    ConfigField,
    ModelFields,
    constant,
    ignore,
    map_float,
    map_int,
    map_norm,
    map_tied_embeddings,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.gpt2 import SUMMARY
from polyhead.hf.families.layer_types import MAX_LAYERS, layer_choice, shortest_period
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

LOCAL, GLOBAL = "local", "global"


def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read which layers have full attention and which a window."""
    window = {"attention": fields["attention"] | {"window": reader.get_int("window_size", 256)}}
    overrides = shortest_period(
        [window if kind == LOCAL else {} for kind in _read_attention_types(reader, fields["n_layers"])]
    )
    return {"layer_pattern": overrides if any(overrides) else []}


def _read_attention_types(reader: ConfigReader, n_layers: int) -> list[str]:
    """Return the attention type of each layer, from attention_layers.

    Without it, from attention_types: pairs of a list of types and how often it repeats. transformers has the
    same precedence.
    """
    reader.ignore("attention_types")
    if layers := reader.get_strings("attention_layers"):
        if len(layers) != n_layers or not {*layers} <= {LOCAL, GLOBAL}:
            raise reader.value_error("attention_layers", f"{LOCAL} or {GLOBAL} for each of {n_layers} layers")
        return layers
    pairs = reader.values.get("attention_types", [[[GLOBAL, LOCAL], 12]])
    try:
        words = (word for kinds, times in pairs if kinds for _ in range(times) for word in kinds)
        layers = list(islice(words, min(n_layers, MAX_LAYERS) + 1))
    except (TypeError, ValueError):
        layers = []
    if len(layers) != n_layers or any(word not in (LOCAL, GLOBAL) for word in layers):
        raise reader.value_error("attention_types", f"{LOCAL} or {GLOBAL} for each of {n_layers} layers")
    return layers


def _write_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_layer_types``."""
    sizes = [layer_choice(config, "attention", i).options.get("window") for i in range(config.n_layers)]
    layers = [GLOBAL if size is None else LOCAL for size in sizes]
    return {
        "attention_types": [[layers, 1]],
        "attention_layers": layers,
        "window_size": next((size for size in sizes if size is not None), 256),
    }


# defaults of GPT-Neo 1.3B
KEYS = (
    DECODER,
    ignore("classifier_dropout", *SUMMARY),
    map_int("vocab_size", "vocab_size", 50257),
    map_int("hidden_size", "d_model", 2048),
    map_int("num_layers", "n_layers", 24),
    map_int("num_heads", "n_heads", 16),
    map_int("intermediate_size", "d_ff", optional=True),
    map_int("max_position_embeddings", "max_len", 2048),
    constant(position="learned", attention={"bias": "o", "scale": 1.0}),
    map_activation("activation_function", "gelu_new"),
    map_norm("layer_norm_epsilon", "layernorm", 1e-5),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_float("resid_dropout", "dropout", 0.0),
    ignore("embed_dropout", field_paths="dropout"),
    map_tied_embeddings(True),
    ConfigField(_read_layer_types, _write_layer_types),
)
BLOCK = "transformer.h.{n}"
TABLE = (
    *weight("transformer.wte.weight", TOKEN_EMBEDDING),
    *weight("transformer.wpe.weight", "embedding.position.weight"),
    *linear(f"{BLOCK}.ln_1", f"{STACK_LAYER}.attn_residual.norm"),
    *(
        row
        for x in "qkv"
        for row in linear(f"{BLOCK}.attn.attention.{x}_proj", f"{STACK_LAYER}.attn.{x}_proj")
    ),
    *linear(f"{BLOCK}.attn.attention.out_proj", f"{STACK_LAYER}.attn.o_proj"),
    *linear(f"{BLOCK}.ln_2", f"{STACK_LAYER}.ffn_residual.norm"),
    *linear(f"{BLOCK}.mlp.c_fc", f"{STACK_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.mlp.c_proj", f"{STACK_LAYER}.ffn.down_proj"),
    *linear("transformer.ln_f", FINAL_NORM),
    *weight("lm_head.weight", HEAD_WEIGHT),
)
BUFFERS = r"transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)"
TIED = {"lm_head.weight": "transformer.wte.weight"}
FAMILY.register("gpt_neo")(
    ModelFamily(
        {"CausalLM": "GPTNeoForCausalLM"},
        KEYS,
        TABLE,
        "transformer.",
        BUFFERS,
        TIED,
        load_legacy_tokenizer=load_byte_level,
    )
)
