"""Llama (Touvron et al., 2023) and its kin: rotary positions, RMS norm, gated feed-forward, grouped heads, few biases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, GATED, HEAD, LAYER, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.pattern import part
from polyhead.hf.table import both, one
from polyhead.nn.position.scaling import sharper
from polyhead.registry import Choice

SCALINGS = ("default", "linear", "yarn", "llama3")
"""Of rope, in most families."""


def common(
    given: Given,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    max_len: int,
    eps: float = 1e-6,
    fraction: str | None = None,
    theta: float = 10000.0,
    position: dict[str, Any] | None = None,
    activations: Mapping[str, Choice] = GATED,
) -> dict[str, Any]:
    """What all these families say alike; the numbers are what the family has where its config.json says nothing,
    ``fraction`` is the key of the part of features that turn, if there is one, and ``position`` stands in for the usual
    keys of rope where a family has others; ``activations`` are those by their published names."""
    d_model, n_heads = given.size("hidden_size", 4096), given.size("num_attention_heads", 32)
    n_kv_heads = given.size(
        "num_key_value_heads", n_heads if given.null("num_key_value_heads") else kv_heads or n_heads
    )
    max_len = given.size("max_position_embeddings", max_len)
    given.only("rope_interleaved", False)
    activation = activations[given.word("hidden_act", "silu", activations)]
    return {
        "kind": "decoder",
        "vocab_size": given.size("vocab_size"),
        "d_model": d_model,
        "n_layers": given.size("num_hidden_layers", 32),
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": given.size("head_dim", head_dim or max(1, d_model // n_heads)),
        "d_ff": given.size("intermediate_size"),
        "max_len": max_len,
        "position": position or rope(given, max_len, fraction=fraction, base=theta),
        "norm": {"name": "rmsnorm", "eps": given.number("rms_norm_eps", eps)},
        "norm_first": True,
        "feed_forward": activation.written(),
        "dropout": 0.0,
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", False) else "none",
        "scale_embedding": False,
        "init": "normal",
    }


def rope(
    given: Given,
    max_len: int,
    *,
    theta: str = "rope_theta",
    fraction: str | None = None,
    turning: float = 1.0,
    base: float = 10000.0,
    scalings: Sequence[str] = SCALINGS,
) -> dict[str, Any]:
    """The position, from rope_parameters or the older keys of a family: its theta, ``base`` where nothing is said, and its
    ``fraction`` of features that turn, which is then ``turning``; without such a key they all do. ``scalings`` are those that
    the family has."""
    options: dict[str, Any] = {"name": "rope", "theta": given.number(theta, base)}
    if fraction is not None:
        options["fraction"] = given.number(fraction, turning)
    old = given.section("rope_scaling")
    new = given.section("rope_parameters")
    found = old if old and old.values else new  # as the reference, where a file has both
    if found is None:
        return options
    if given.has("original_max_position_embeddings"):
        trained = given.size("original_max_position_embeddings")
        found = Given(found.values | {"original_max_position_embeddings": trained}, found.where)
    return scaled(found, options, max_len, scalings)


def scaled(
    found: Given, options: dict[str, Any], max_len: int, scalings: Sequence[str] = SCALINGS
) -> dict[str, Any]:
    """The position with what a section of rope's keys says in place of these options."""
    options["theta"] = found.number("rope_theta", options["theta"])
    key = "rope_type" if found.has("rope_type") or not found.has("type") else "type"
    found.passed("type")
    word = found.word(key, "default", scalings)
    scaling = {"su": "longrope"}.get(word, word)  # its first name
    if "fraction" in options:
        options["fraction"] = found.number("partial_rotary_factor", options["fraction"])
    else:
        found.only("partial_rotary_factor", 1.0)
    if scaling in ("yarn", "llama3", "longrope"):
        options["original_len"] = found.size("original_max_position_embeddings", max_len)
    if scaling == "default":
        found.passed("factor", "original_max_position_embeddings")
    else:
        longer = max_len / options["original_len"] if scaling == "longrope" else None
        options |= {"scaling": scaling, "factor": found.number("factor", longer)}
    if scaling == "longrope":
        found.only("factor", longer)
        options |= {"short": found.numbers("short_factor"), "long": found.numbers("long_factor")}
    if scaling == "yarn":
        found.only("beta_fast", 32)
        found.only("beta_slow", 1)
        found.only("truncate", True)
        if not found.has("mscale_all_dim"):
            found.passed("mscale")  # the reference reads both or none
    if scaling in ("yarn", "longrope"):
        gain = sharper(scaling, options["factor"], options["original_len"])
        if not math.isclose(found.number("attention_factor", gain), gain, rel_tol=1e-6):
            raise found.wrong("attention_factor", f"{gain:.6g}, all that is built for this factor")
    if scaling == "llama3":
        found.only("low_freq_factor", 1)
        found.only("high_freq_factor", 4)
    found.finish()
    return options


def said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``common``."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_len,
        "hidden_act": activation_of(config.feed_forward, GATED),
        "rms_norm_eps": config.norm.options.get("eps", 1e-6),
        "attention_dropout": config.attention.options.get("dropout", 0.0),
        "tie_word_embeddings": config.tie_embeddings != "none",
        **rope_said(config.position.options),
    }


def rope_said(options: dict[str, Any]) -> dict[str, Any]:
    """Theta and its scaling in both forms, the one of today and the one that older readers know."""
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
    old = {key: value for key, value in parameters.items() if key != "rope_theta"}
    if scaling == "longrope":  # of which older readers allow three keys
        old = {"type": scaling, **{key: value for key, value in old.items() if key.endswith("_factor")}}
    return {
        "rope_theta": theta,
        "rope_scaling": None if scaling == "none" else old,
        "rope_parameters": parameters,
    }


def attention(given: Given, **options: Any) -> dict[str, Any]:
    """Softmax attention with these options."""
    return {"attention": {"name": "softmax", "dropout": given.number("attention_dropout", 0.0), **options}}


def divided(given: Given, fields: dict[str, Any]) -> dict[str, Any]:
    """The same fields; the reference refuses models whose heads do not divide their width, even where head_dim is given."""
    if fields["d_model"] % fields["n_heads"]:
        raise UserError(
            f"{given.where}: hidden_size ({fields['d_model']}) must be divisible by num_attention_heads ({fields['n_heads']})"
        )
    return fields


def biased(given: Given, fields: dict[str, Any]) -> dict[str, Any]:
    """The feed-forward of these fields, with biases if it has any."""
    gate = Choice.read(fields["feed_forward"])
    return {"feed_forward": Choice(gate.name, **gate.options, bias=given.flag("mlp_bias", False)).written()}


def biases_said(config: ModelConfig) -> dict[str, Any]:
    """Whether attention and the feed-forward have them."""
    parts = {"attention_bias": part(config, "attention", 0), "mlp_bias": config.feed_forward}
    return {key: choice.options.get("bias") is True for key, choice in parts.items()}


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    fields = divided(given, common(given, max_len=2048))
    return fields | attention(given, bias=given.flag("attention_bias", False)) | biased(given, fields)


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return said(config) | biases_said(config)


BLOCK = "model.layers.{n}"
TABLE = (
    *one("model.embed_tokens.weight", EMBEDDING),
    *one(f"{BLOCK}.input_layernorm.weight", f"{LAYER}.attn_residual.norm.weight"),
    *both(f"{BLOCK}.self_attn.q_proj", f"{LAYER}.attn.q_proj"),
    *both(f"{BLOCK}.self_attn.k_proj", f"{LAYER}.attn.k_proj"),
    *both(f"{BLOCK}.self_attn.v_proj", f"{LAYER}.attn.v_proj"),
    *both(f"{BLOCK}.self_attn.o_proj", f"{LAYER}.attn.o_proj"),
    *one(f"{BLOCK}.self_attn.q_norm.weight", f"{LAYER}.attn.q_norm.weight"),
    *one(f"{BLOCK}.self_attn.k_norm.weight", f"{LAYER}.attn.k_norm.weight"),
    *one(f"{BLOCK}.post_attention_layernorm.weight", f"{LAYER}.ffn_residual.norm.weight"),
    *both(f"{BLOCK}.mlp.gate_proj", f"{LAYER}.ffn.gate_proj"),
    *both(f"{BLOCK}.mlp.up_proj", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.mlp.down_proj", f"{LAYER}.ffn.down_proj"),
    *one("model.norm.weight", f"{FINAL_NORM}.weight"),
    *one("lm_head.weight", HEAD),
)
BUFFERS = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"  # of files before 2023
TIED = {"lm_head.weight": "model.embed_tokens.weight"}
LLAMA = FAMILY.register("llama")(
    Family({"CausalLM": "LlamaForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
