"""Llama (Touvron et al., 2023) and its kin: rotary positions, RMS norm, gated feed-forward, grouped heads, few biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from polyhead.errors import UserError
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, GATED, HEAD, LAYER, Family, activation
from polyhead.hf.given import Given
from polyhead.hf.keys import DECODER, Fields, Key, fixed, flag, found, norm, number, only, size, tied
from polyhead.hf.table import both, one
from polyhead.nn.position.scaling import sharper

SCALINGS = ("default", "linear", "yarn", "llama3")
"""Of rope, in most families."""


HEAD_DIM = Key(
    lambda given, fields: {
        "head_dim": given.size("head_dim", max(1, fields["d_model"] // fields["n_heads"]))
    },
    lambda config: {"head_dim": config.head_dim},
)
# of families whose heads always divide d_model among them
HEAD_DIM_UNSAID = Key(HEAD_DIM.read)


def keys(
    kv_heads: int | None = None,
    *,
    head_dim: Key = HEAD_DIM,
    feed_forward: Key = activation("hidden_act", "silu", GATED),
    norms: Key = norm("rms_norm_eps", "rmsnorm", 1e-6),
    position: Key | None = None,
) -> tuple[Key, ...]:
    """What all these families say alike; ``kv_heads`` is how many heads of keys a file has that says nothing of them, where
    that is not all of them, and the rows stand in place of the usual ones."""
    return (
        DECODER,
        fixed(dropout=0.0),
        only("rope_interleaved", False),
        size("vocab_size", "vocab_size"),
        size("hidden_size", "d_model", 4096),
        size("intermediate_size", "d_ff"),
        size("num_hidden_layers", "n_layers", 32),
        size("num_attention_heads", "n_heads", 32),
        size("num_key_value_heads", "n_kv_heads", kv_heads, optional=True),
        head_dim,
        size("max_position_embeddings", "max_len", 2048),
        feed_forward,
        norms,
        number("attention_dropout", "attention.dropout", 0.0),
        tied(False),
        position or rotary(),
    )


def rotary(fraction: str | None = None, scalings: Sequence[str] = SCALINGS) -> Key:
    """Rope, with the key of the part of features that turn, if there is one, and the scalings that the family has."""
    return Key(
        lambda given, fields: {
            "position": rope(given, fields["max_len"], fraction=fraction, scalings=scalings)
        },
        lambda config: rope_said(config.position.options, fraction),
    )


def rope(
    given: Given,
    max_len: int,
    *,
    theta: str = "rope_theta",
    fraction: str | None = None,
    scalings: Sequence[str] = SCALINGS,
) -> dict[str, Any]:
    """The position, from rope_parameters or the older keys of a family: its theta and its ``fraction`` of features that turn;
    without such a key they all do. ``scalings`` are those that the family has."""
    options: dict[str, Any] = {"name": "rope", "theta": given.number(theta, 10_000.0)}
    if fraction is not None:
        options["fraction"] = given.number(fraction, 1.0)
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


def rope_said(options: dict[str, Any], fraction: str | None = None) -> dict[str, Any]:
    """Theta and its scaling in both forms, the one of today and the one that older readers know; so with the part that turns."""
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
    turning = {}
    if fraction is not None:
        turning[fraction] = parameters["partial_rotary_factor"] = options.get("fraction", 1.0)
    return turning | {
        "rope_theta": theta,
        "rope_scaling": None if scaling == "none" else old,
        "rope_parameters": parameters,
    }


def divided(given: Given, fields: Fields) -> Fields:
    """The reference refuses models whose heads do not divide their width, even where head_dim is given."""
    if fields["d_model"] % fields["n_heads"]:
        raise UserError(
            f"{given.where}: hidden_size ({fields['d_model']}) must be divisible by num_attention_heads ({fields['n_heads']})"
        )
    return {}


def query_norms(kind: str | bool, theirs: str = "") -> Key:
    """Norms of that kind on queries and keys, with the eps of the others; of all models, or where that key says so."""

    def read(given: Given, fields: Fields) -> Fields:
        normed = not theirs or given.flag(theirs, False)
        return {"attention": {"qk_norm": kind, "qk_eps": fields["norm"]["eps"]}} if normed else {}

    return Key(read, lambda config: {theirs: found(config, "attention.qk_norm") == kind} if theirs else {})


DIVIDED = Key(divided)
BIASES = (flag("attention_bias", "attention.bias", False), flag("mlp_bias", "feed_forward.bias", False))
KEYS = (*keys(), DIVIDED, *BIASES)
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
FAMILY.register("llama")(Family({"CausalLM": "LlamaForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
