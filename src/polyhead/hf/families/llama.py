"""Llama (Touvron et al., 2023) and its variants: rope, RMS norm, gated feed-forward, grouped-query attention,
few biases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.hf.config_map import (
    DECODER,
    FULL_ATTENTION,
    ConfigField,
    ConfigReader,
    ModelFields,
    constant,
    get_field,
    layer_choice,
    map_bool,
    map_float,
    map_int,
    map_norm,
    map_tied_embeddings,
    require,
)
from polyhead.hf.family import (
    FAMILY,
    FINAL_NORM,
    HEAD_WEIGHT,
    HF_GATED_ACTIVATIONS,
    STACK_LAYER,
    TOKEN_EMBEDDING,
    ModelFamily,
    WeightRule,
    linear,
    map_activation,
    weight,
)
from polyhead.nn.position.rope import yarn_attention_factor

HF_ROPE_SCALINGS = ("default", "linear", "yarn", "llama3")
"""Rope scalings of most families."""


HEAD_DIM = ConfigField(
    lambda reader, fields: {
        "head_dim": reader.get_int("head_dim", max(1, fields["d_model"] // fields["n_heads"]))
    },
    lambda config: {"head_dim": config.head_dim},
)
# of families in which the heads always divide d_model
DERIVED_HEAD_DIM = ConfigField(HEAD_DIM.read)


def llama_keys(
    kv_heads: int | None = None,
    *,
    head_dim: ConfigField = HEAD_DIM,
    feed_forward: ConfigField = map_activation("hidden_act", "silu", HF_GATED_ACTIVATIONS),
    norms: ConfigField = map_norm("rms_norm_eps", "rmsnorm", 1e-6),
    position: ConfigField | None = None,
) -> tuple[ConfigField, ...]:
    """Return the rows shared by these families.

    ``kv_heads`` is the default number of key/value heads if it is not that of all heads; the other arguments
    replace the usual rows.
    """
    return (
        DECODER,
        constant(dropout=0.0),
        require("rope_interleaved", False),
        map_int("vocab_size", "vocab_size"),
        map_int("hidden_size", "d_model", 4096),
        map_int("intermediate_size", "d_ff"),
        map_int("num_hidden_layers", "n_layers", 32),
        map_int("num_attention_heads", "n_heads", 32),
        map_int("num_key_value_heads", "n_kv_heads", kv_heads, optional=True),
        head_dim,
        map_int("max_position_embeddings", "max_len", 2048),
        feed_forward,
        norms,
        map_float("attention_dropout", "attention.dropout", 0.0),
        map_tied_embeddings(False),
        position or map_rope(),
    )


def map_rope(fraction_key: str | None = None, scalings: Sequence[str] = HF_ROPE_SCALINGS) -> ConfigField:
    """Map rope. ``fraction_key``: key of the rotated fraction, if any; ``scalings``: those of the family."""
    return ConfigField(
        lambda reader, fields: {
            "position": read_rope(reader, fields["max_len"], fraction_key=fraction_key, scalings=scalings)
        },
        lambda config: write_rope(config.position.options, fraction_key),
    )


def read_rope(
    reader: ConfigReader,
    max_len: int,
    *,
    theta_key: str = "rope_theta",
    fraction_key: str | None = None,
    scalings: Sequence[str] = HF_ROPE_SCALINGS,
) -> dict[str, Any]:
    """Return the position, from rope_parameters or the older keys of a family.

    ``theta_key`` and ``fraction_key`` are those keys; without the latter all features are rotated.
    ``scalings`` are those of the family.
    """
    options: dict[str, Any] = {"name": "rope", "theta": reader.get_float(theta_key, 10_000.0)}
    if fraction_key is not None:
        options["fraction"] = reader.get_float(fraction_key, 1.0)
    old_section = reader.get_section("rope_scaling")
    new_section = reader.get_section("rope_parameters")
    section = old_section if old_section and old_section.values else new_section  # precedence of transformers
    if section is None:
        return options
    if reader.has("original_max_position_embeddings"):
        original_len = reader.get_int("original_max_position_embeddings")
        section = ConfigReader(
            section.values | {"original_max_position_embeddings": original_len}, section.location
        )
    return read_rope_scaling(section, options, max_len, scalings)


def read_rope_scaling(
    section: ConfigReader, options: dict[str, Any], max_len: int, scalings: Sequence[str] = HF_ROPE_SCALINGS
) -> dict[str, Any]:
    """Return the position of a rope section, with ``options`` as defaults."""
    options["theta"] = section.get_float("rope_theta", options["theta"])
    key = "rope_type" if section.has("rope_type") or not section.has("type") else "type"
    section.ignore("type")
    rope_type = section.get_choice(key, "default", scalings)
    scaling = {"su": "longrope"}.get(rope_type, rope_type)  # its first name
    if "fraction" in options:
        options["fraction"] = section.get_float("partial_rotary_factor", options["fraction"])
    else:
        section.require("partial_rotary_factor", 1.0)
    if scaling in ("yarn", "llama3", "longrope"):
        options["original_len"] = section.get_int("original_max_position_embeddings", max_len)
    if scaling == "default":
        section.ignore("factor", "original_max_position_embeddings")
    else:
        longer = max_len / options["original_len"] if scaling == "longrope" else None
        options |= {"scaling": scaling, "factor": section.get_float("factor", longer)}
    if scaling == "longrope":
        section.require("factor", longer)
        options |= {"short": section.get_floats("short_factor"), "long": section.get_floats("long_factor")}
    if scaling == "yarn":
        section.require("beta_fast", 32)
        section.require("beta_slow", 1)
        section.require("truncate", True)
        if not section.has("mscale_all_dim"):
            section.ignore("mscale")  # transformers reads both or none
    if scaling in ("yarn", "longrope"):
        gain = yarn_attention_factor(scaling, options["factor"], options["original_len"])
        if not math.isclose(section.get_float("attention_factor", gain), gain, rel_tol=1e-6):
            raise section.value_error(
                "attention_factor", f"{gain:.6g}, the only supported value for this factor"
            )
    if scaling == "llama3":
        section.require("low_freq_factor", 1)
        section.require("high_freq_factor", 4)
    section.reject_unknown()
    return options


def write_rope(options: dict[str, Any], fraction_key: str | None = None) -> dict[str, Any]:
    """Write theta, scaling and the rotated fraction, both in today's form and in that of older readers."""
    theta, scaling = options.get("theta", 10000.0), options.get("scaling", "none")
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if scaling in ("linear", "yarn", "llama3", "longrope"):
        parameters |= {"rope_type": scaling, "factor": options["factor"]}
    if scaling in ("yarn", "llama3", "longrope"):
        parameters["original_max_position_embeddings"] = options["original_len"]
    if scaling == "longrope":
        parameters |= {"short_factor": options["short"], "long_factor": options["long"]}
    if scaling == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    old_parameters = {key: value for key, value in parameters.items() if key != "rope_theta"}
    if scaling == "longrope":  # older readers accept only three keys
        old_parameters = {
            "type": scaling,
            **{key: value for key, value in old_parameters.items() if key.endswith("_factor")},
        }
    fraction = {}
    if fraction_key is not None:
        fraction[fraction_key] = parameters["partial_rotary_factor"] = options.get("fraction", 1.0)
    return fraction | {
        "rope_theta": theta,
        "rope_scaling": None if scaling == "none" else old_parameters,
        "rope_parameters": parameters,
    }


def _check_divisible_heads(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Require heads that divide d_model, as transformers does even with an explicit head_dim."""
    if fields["d_model"] % fields["n_heads"]:
        raise UserError(
            f"{reader.location}: hidden_size ({fields['d_model']}) must be divisible by num_attention_heads "
            f"({fields['n_heads']})"
        )
    return {}


def map_qk_norm(kind: str | bool, key: str = "") -> ConfigField:
    """Map norms on queries and keys with the eps of other norms: in all models, or if ``key`` is true."""

    def read(reader: ConfigReader, fields: ModelFields) -> ModelFields:
        has_norms = not key or reader.get_bool(key, False)
        return {"attention": {"qk_norm": kind, "qk_eps": fields["norm"]["eps"]}} if has_norms else {}

    return ConfigField(
        read, lambda config: {key: get_field(config, "attention.qk_norm") == kind} if key else {}
    )


DIVISIBLE_HEADS = ConfigField(_check_divisible_heads)
BIASES = (
    map_bool("attention_bias", "attention.bias", False),
    map_bool("mlp_bias", "feed_forward.bias", False),
)
KEYS = (*llama_keys(), DIVISIBLE_HEADS, *BIASES)
BLOCK = "model.layers.{n}"
TABLE = (
    *weight("model.embed_tokens.weight", TOKEN_EMBEDDING),
    *weight(f"{BLOCK}.input_layernorm.weight", f"{STACK_LAYER}.attn_residual.norm.weight"),
    *linear(f"{BLOCK}.self_attn.q_proj", f"{STACK_LAYER}.attn.q_proj"),
    *linear(f"{BLOCK}.self_attn.k_proj", f"{STACK_LAYER}.attn.k_proj"),
    *linear(f"{BLOCK}.self_attn.v_proj", f"{STACK_LAYER}.attn.v_proj"),
    *linear(f"{BLOCK}.self_attn.o_proj", f"{STACK_LAYER}.attn.o_proj"),
    *weight(f"{BLOCK}.self_attn.q_norm.weight", f"{STACK_LAYER}.attn.q_norm.weight"),
    *weight(f"{BLOCK}.self_attn.k_norm.weight", f"{STACK_LAYER}.attn.k_norm.weight"),
    *weight(f"{BLOCK}.post_attention_layernorm.weight", f"{STACK_LAYER}.ffn_residual.norm.weight"),
    *linear(f"{BLOCK}.mlp.gate_proj", f"{STACK_LAYER}.ffn.gate_proj"),
    *linear(f"{BLOCK}.mlp.up_proj", f"{STACK_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.mlp.down_proj", f"{STACK_LAYER}.ffn.down_proj"),
    *weight("model.norm.weight", f"{FINAL_NORM}.weight"),
    *weight("lm_head.weight", HEAD_WEIGHT),
)
BUFFERS = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"  # of files before 2023
TIED = {"lm_head.weight": "model.embed_tokens.weight"}


def register_llama(
    name: str, hf_class: str, keys: tuple[ConfigField, ...], table: tuple[WeightRule, ...] = TABLE
) -> None:
    """Register a family with the prefix, buffers and tied weights of Llama."""
    FAMILY.register(name)(ModelFamily({"CausalLM": hf_class}, keys, table, "model.", BUFFERS, TIED))


register_llama("llama", "LlamaForCausalLM", KEYS)


# Read and write rope with different options for windowed and full-attention layers.
# per layer type: key of its theta in older files, if any, and default theta
RopeThetas = Mapping[str, tuple[str | None, float]]


def read_ropes(reader: ConfigReader, thetas: RopeThetas, max_len: int) -> dict[str, dict[str, Any]]:
    """Return rope per layer type, from rope_parameters; older files have thetas and a scaling of
    full-attention layers.
    """
    ropes = {}
    new_section, old_section = reader.get_section("rope_parameters"), reader.get_section("rope_scaling")
    for kind, (key, theta) in thetas.items():
        section = (new_section.get_section(kind) if new_section else None) or ConfigReader(
            {}, reader.location
        )
        if old_section and kind == FULL_ATTENTION:
            section = ConfigReader(
                section.values | old_section.values, old_section.location
            )  # precedence of transformers
        options = {"name": "rope", "theta": theta if key is None else reader.get_float(key, theta)}
        ropes[kind] = read_rope_scaling(section, options, max_len)
    if new_section:
        new_section.reject_unknown()
    return ropes


def write_ropes(config: ModelConfig, thetas: RopeThetas, kinds: list[str]) -> dict[str, Any]:
    """Inverse of ``read_ropes`` for these layer types."""
    options = {kind: layer_choice(config, "position", kinds.index(kind)).options for kind in kinds}
    parameters = {
        kind: write_rope(options.get(kind, {"theta": theta})) for kind, (_, theta) in thetas.items()
    }
    return {
        **{key: parameters[kind]["rope_theta"] for kind, (key, _) in thetas.items() if key is not None},
        "rope_scaling": parameters[FULL_ATTENTION]["rope_scaling"],
        "rope_parameters": {kind: values["rope_parameters"] for kind, values in parameters.items()},
    }
