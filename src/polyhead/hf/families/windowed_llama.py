"""Variants of Llama, most with windows in some layers: Gemma 2 and 3, OLMo, EXAONE, Cohere and SmolLM3."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.core.option_types import resolve_factor
from polyhead.hf.config_map import (
    FULL_ATTENTION,
    MAX_LAYERS,
    PARALLEL_BLOCK,
    SLIDING_ATTENTION,
    ConfigField,
    ConfigReader,
    ModelFields,
    build_pattern,
    constant,
    defaults,
    ignore,
    layer_choice,
    map_bool,
    map_float,
    map_norm,
    parse_layer_types,
    read_window,
    require,
    rope_options,
    shortest_period,
    write_windows,
)
from polyhead.hf.families.llama import (
    BIASES,
    BLOCK,
    BUFFERS,
    DIVISIBLE_HEADS,
    TIED,
    llama_keys,
    map_qk_norm,
    map_rope,
    read_ropes,
    register_llama,
    write_rope,
    write_ropes,
)
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.families.llama_variants import read_positive
from polyhead.hf.family import (
    FAMILY,
    HF_GATED_ACTIVATIONS,
    STACK,
    STACK_LAYER,
    ModelFamily,
    map_activation,
    weight,
)


# Gemma 2 (2024): a window in every second layer, softcapped scores, zero-centered norms before and after
# sub-layers.
def _read_query_scale(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read query_pre_attn_scalar, whose square root divides the scores."""
    scalar = reader.get_float("query_pre_attn_scalar", 256)
    if scalar <= 0:
        raise reader.value_error("query_pre_attn_scalar", "a number above 0")
    return {"attention": {"scale": None if scalar == fields["head_dim"] else scalar**-0.5}}


def _write_query_scale(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_query_scale``."""
    scale = layer_choice(config, "attention", 0).options.get("scale")
    return {"query_pre_attn_scalar": config.head_dim if scale is None else round(scale**-2)}


def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types: by default every second layer has a window, beginning with the first."""
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: layer % 2 == 0)
    attention = fields["attention"]
    size = (
        reader.get_int("sliding_window", 4096)
        if SLIDING_ATTENTION in kinds or not reader.is_null("sliding_window")
        else None
    )
    overrides = [
        {"attention": attention | {"window": size if kind == SLIDING_ATTENTION else None}}
        for kind in shortest_period(kinds)
    ]
    return {"layer_pattern": overrides} if len(overrides) > 1 else overrides[0]


# rows of Gemma 2 and 3
COMMON_KEYS = (
    defaults(hidden_size=2304, num_hidden_layers=26, num_attention_heads=8, head_dim=256),
    defaults(tie_word_embeddings=True),
    ignore("cache_implementation", "hidden_act"),  # transformers reads the activation from another key
    *llama_keys(
        kv_heads=4,
        feed_forward=map_activation("hidden_activation", "gelu_pytorch_tanh", HF_GATED_ACTIVATIONS),
        position=ConfigField(),
    ),
    DIVISIBLE_HEADS,
    constant(norm={"zero_centered": True}, sandwich_norm=True, scale_embedding=True),
    map_bool("attention_bias", "attention.bias", False),
    ConfigField(_read_query_scale, _write_query_scale),
)
KEYS = (
    defaults(max_position_embeddings=8192),
    ignore("sliding_window_size"),  # transformers reads another key
    require("use_bidirectional_attention", False),
    *COMMON_KEYS,
    map_rope(),
    map_float("attn_logit_softcapping", "attention.softcap", 50.0, optional=True),
    map_float("final_logit_softcapping", "logit_softcap", 30.0, optional=True),
    ConfigField(_read_layer_types, lambda config: write_windows(config, config.max_len)),
)
TABLE = (
    *(row for row in LLAMA if "post_attention" not in row.hf_name),
    *weight(f"{BLOCK}.post_attention_layernorm.weight", f"{STACK_LAYER}.attn_residual.sandwich_norm.weight"),
    *weight(f"{BLOCK}.pre_feedforward_layernorm.weight", f"{STACK_LAYER}.ffn_residual.norm.weight"),
    *weight(f"{BLOCK}.post_feedforward_layernorm.weight", f"{STACK_LAYER}.ffn_residual.sandwich_norm.weight"),
)
register_llama("gemma2", "Gemma2ForCausalLM", KEYS, TABLE)


# Gemma 3 (2025), text models: Gemma 2 with normed queries and keys, and separate rope for full-attention
# layers.
#
# EmbeddingGemma is the encoder: attention is bidirectional, with a window to both sides.
# keys of older files
THETAS = {FULL_ATTENTION: ("rope_theta", 1_000_000.0), SLIDING_ATTENTION: ("rope_local_base_freq", 10_000.0)}
BASE_CLASS = "Gemma3TextModel"


def _read_gemma3_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types: by default all but every sixth layer have a window.

    The window of an encoder is the total width of both sides.
    """
    if reader.has("attn_logit_softcapping"):
        raise reader.value_error("attn_logit_softcapping", "null; the reference implementation ignores it")
    period = reader.get_int("sliding_window_pattern", 6)
    is_encoder = reader.get_bool("use_bidirectional_attention", False)
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


def _write_gemma3_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_gemma3_layer_types``, with the keys of older readers as well."""
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


GEMMA3_KEYS = (
    defaults(max_position_embeddings=131_072),
    ignore("_sliding_window_pattern", "attn_logit_softcapping", "sliding_window"),
    *COMMON_KEYS,
    map_qk_norm("zero_centered"),
    map_float("final_logit_softcapping", "logit_softcap", optional=True),
    ConfigField(_read_gemma3_layer_types, _write_gemma3_layer_types),
)
FAMILY.register("gemma3_text")(
    ModelFamily(
        {"CausalLM": "Gemma3ForCausalLM", "SentenceEncoder": BASE_CLASS},
        GEMMA3_KEYS,
        TABLE,
        "model.",
        BUFFERS,
        TIED,
    )
)


# OLMo 2 (2024): Llama with norms only after its sub-layers, and queries and keys normed over all heads.
def olmo2_keys(position: ConfigField) -> tuple[ConfigField, ...]:
    """Return the rows of this family with that row of positions."""
    return (
        defaults(rms_norm_eps=1e-5),
        *llama_keys(position=position),
        map_bool("attention_bias", "attention.bias", False),
        map_qk_norm("all_heads"),
        constant(sandwich_norm="after"),
    )


OLMO2_KEYS = olmo2_keys(map_rope())
OLMO2_TABLE = (
    *(row for row in LLAMA if "layernorm" not in row.hf_name),
    *weight(f"{BLOCK}.post_attention_layernorm.weight", f"{STACK_LAYER}.attn_residual.sandwich_norm.weight"),
    *weight(f"{BLOCK}.post_feedforward_layernorm.weight", f"{STACK_LAYER}.ffn_residual.sandwich_norm.weight"),
)
register_llama("olmo2", "Olmo2ForCausalLM", OLMO2_KEYS, OLMO2_TABLE)


# OLMo 3 (2025): OLMo 2 with a window in all but every fourth layer, scaled rope only in those without.
# transformers applies the theta of older files to the full-attention layers
OLMO2_THETAS = {FULL_ATTENTION: ("rope_theta", 500_000.0), SLIDING_ATTENTION: (None, 500_000.0)}


def _read_olmo3_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types: by default all but every fourth layer have a window."""
    positions = read_ropes(reader, OLMO2_THETAS, fields["max_len"])
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: (layer + 1) % 4 > 0)
    overrides: dict[str, ModelFields] = {FULL_ATTENTION: {}}
    if SLIDING_ATTENTION in kinds:
        size = read_window(reader)
        overrides[SLIDING_ATTENTION] = {
            "attention": fields["attention"] | {"window": size},
            "position": positions[SLIDING_ATTENTION],
        }
    return {"position": positions[FULL_ATTENTION], "layer_pattern": build_pattern(kinds, overrides)}


def _write_olmo3_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_olmo3_layer_types``."""
    windows = write_windows(config, config.max_len)
    return windows | write_ropes(config, OLMO2_THETAS, windows["layer_types"])


OLMO3_KEYS = (
    ignore("sliding_window"),
    *olmo2_keys(ConfigField()),
    ConfigField(_read_olmo3_layer_types, _write_olmo3_layer_types),
)
register_llama("olmo3", "Olmo3ForCausalLM", OLMO3_KEYS, OLMO2_TABLE)


# EXAONE 4.0 (LG AI Research, 2025): OLMo 2 with queries and keys normed per head.
#
# Layers with a window have rope; in models that have windows, full-attention layers have no positions.
def _read_exaone_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types. Without a window size all layers have full attention and rope."""
    size = None if reader.is_null("sliding_window") else reader.get_int("sliding_window", 4096)
    reader.ignore("sliding_window", "sliding_window_pattern")
    period = 1 if size is None or reader.has("layer_types") else reader.get_int("sliding_window_pattern", 4)
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: (layer + 1) % period > 0)
    if size is None and SLIDING_ATTENTION in kinds:
        raise reader.value_error(
            "layer_types", f"{FULL_ATTENTION} for each layer, since sliding_window is null"
        )
    overrides: dict[str, ModelFields] = {
        FULL_ATTENTION: {} if size is None else {"position": "none"},
        SLIDING_ATTENTION: {"attention": fields["attention"] | {"window": size}},
    }
    return {"layer_pattern": build_pattern(kinds, overrides)}


def _write_exaone_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_exaone_layer_types``, with the rope of the layers that have it."""
    # if no layer has a window, any window size means that no layer has positions
    positions = [layer_choice(config, "position", i).name for i in range(config.n_layers)]
    default_window = config.max_len if "none" in positions else None
    return write_rope(rope_options(config)) | write_windows(config, default_window)


EXAONE_KEYS = (
    defaults(vocab_size=102400, intermediate_size=16384, rms_norm_eps=1e-5),
    *llama_keys(),
    constant(attention={"bias": False}, sandwich_norm="after"),
    map_qk_norm(True),
    ConfigField(_read_exaone_layer_types, _write_exaone_layer_types),
)
register_llama("exaone4", "Exaone4ForCausalLM", EXAONE_KEYS, OLMO2_TABLE)


# Command R, Aya (Cohere, 2024) and Command R7B: parallel sub-layers after one norm, interleaved rope.
def _read_logit_scale(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read logit_scale: transformers multiplies the logits, we divide the input of the head."""
    divisor = 1 / read_positive(reader, "logit_scale")
    return {"logits_scale": divisor == fields["d_model"] ** 0.5 or divisor}


def _read_cohere_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types: by default three of four layers have a window, the others no positions."""
    period = reader.get_int("sliding_window_pattern", 4)
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: (layer + 1) % period > 0)
    overrides: dict[str, ModelFields] = {FULL_ATTENTION: {"position": "none"}}
    if SLIDING_ATTENTION in kinds:
        overrides[SLIDING_ATTENTION] = {"attention": fields["attention"] | {"window": read_window(reader)}}
    return {"layer_pattern": build_pattern(kinds, overrides)}


_COMMON_KEYS = (
    defaults(hidden_size=8192, num_hidden_layers=40, num_attention_heads=64, max_position_embeddings=8192),
    defaults(logit_scale=0.0625, tie_word_embeddings=True),
    ignore("rms_norm_eps", "model_max_length"),  # transformers reads other keys
    *llama_keys(norms=map_norm("layer_norm_eps", "layernorm", 1e-5)),
    DIVISIBLE_HEADS,
    constant(block=PARALLEL_BLOCK),
    constant(norm={"bias": False}, position={"layout": "interleaved"}),
    map_bool("attention_bias", "attention.bias", False),
    ConfigField(
        _read_logit_scale,
        lambda config: {"logit_scale": 1 / resolve_factor(config.logits_scale, config.d_model**0.5)},
    ),
)
COHERE_KEYS = (defaults(rope_theta=500_000.0), *_COMMON_KEYS, map_qk_norm("per_head", "use_qk_norm"))
# keys in the files that transformers does not read
_UNREAD_KEYS = """
    _sliding_window_pattern cache_implementation layer_switch order_of_interleaved_layers
    position_embedding_type rotary_pct     use_embedding_sharing use_gated_activation use_parallel_block
    use_parallel_embedding
""".split()  # noqa: SIM905
KEYS_2 = (
    ignore("sliding_window", *_UNREAD_KEYS),
    *_COMMON_KEYS,
    ConfigField(
        _read_cohere_layer_types,
        lambda config: write_rope(rope_options(config)) | write_windows(config, config.max_len),
    ),
)
COHERE_TABLE = (
    *(row for row in LLAMA if "post_attention" not in row.hf_name and "_norm." not in row.hf_name),
    *weight(f"{BLOCK}.self_attn.q_norm.weight", f"{STACK_LAYER}.attn.q_norm.heads.{{q}}", transform=STACK),
    *weight(f"{BLOCK}.self_attn.k_norm.weight", f"{STACK_LAYER}.attn.k_norm.heads.{{k}}", transform=STACK),
)
register_llama("cohere", "CohereForCausalLM", COHERE_KEYS, COHERE_TABLE)
register_llama("cohere2", "Cohere2ForCausalLM", KEYS_2, COHERE_TABLE)


# SmolLM3 (2025): Llama in which every fourth layer has no positions.
def _read_smollm3_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read which layers have rope and which a window."""
    ropes, n_layers = _read_rope_layers(reader, fields["n_layers"]), fields["n_layers"]
    size = reader.get_int("sliding_window") if reader.has("sliding_window") else None
    has_windows = reader.get_bool("use_sliding_window", False) and size is not None
    kinds = parse_layer_types(reader, n_layers, lambda layer: has_windows and not ropes[layer])
    if SLIDING_ATTENTION in kinds and not has_windows:
        raise reader.value_error(
            "layer_types", "layers with full attention, without use_sliding_window and sliding_window"
        )
    pattern = [
        ({} if roped else {"position": "none"})
        | ({"attention": fields["attention"] | {"window": size}} if kind == SLIDING_ATTENTION else {})
        for roped, kind in shortest_period(list(zip(ropes, kinds, strict=True)))
    ]
    return {"layer_pattern": pattern if any(pattern) else []}


def _read_rope_layers(reader: ConfigReader, n_layers: int) -> list[bool]:
    """Return whether each layer has rope, from no_rope_layers (1: rope) or no_rope_layer_interval."""
    interval = reader.get_int("no_rope_layer_interval", 4)
    if not reader.has("no_rope_layers"):
        return [(layer + 1) % interval > 0 for layer in range(min(n_layers, MAX_LAYERS))]
    has_rope = reader.get_bits("no_rope_layers")
    if len(has_rope) < n_layers:
        raise reader.value_error("no_rope_layers", f"a 1 or 0 for each of {n_layers} layers")
    return has_rope[:n_layers]


def _write_smollm3_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_smollm3_layer_types``, with the rope of the layers that have it."""
    windows = write_windows(config)
    positions = [layer_choice(config, "position", i).name for i in range(config.n_layers)]
    return write_rope(rope_options(config)) | windows | {
        "no_rope_layers": [int(name != "none") for name in positions],
        "use_sliding_window": windows["sliding_window"] is not None,
    }  # fmt: skip


SMOLLM3_KEYS = (
    defaults(hidden_size=2048, num_hidden_layers=36, num_attention_heads=16, max_position_embeddings=32768),
    defaults(rope_theta=2_000_000.0, tie_word_embeddings=True),
    ignore("max_window_layers"),  # transformers reads other keys
    *llama_keys(kv_heads=4),
    *BIASES,
    ConfigField(_read_smollm3_layer_types, _write_smollm3_layer_types),
)
register_llama("smollm3", "SmolLM3ForCausalLM", SMOLLM3_KEYS)
