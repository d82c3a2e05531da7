"""Gemma 2 (2024): a window in every second layer, bounded scores, norms before and after whose weights lie around one."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, GATED, HEAD, LAYER, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TIED, attention, common, divided, said
from polyhead.hf.pattern import WINDOW, kinds_of, part, turn, windows_said
from polyhead.hf.table import both, one


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. Without a word on the layers every second one has a window, the first too."""
    given.passed("sliding_window_size")  # the reference reads another in its place
    given.only("use_bidirectional_attention", False)
    given.assume(hidden_size=2304, num_hidden_layers=26, num_attention_heads=8)
    fields = common(given, kv_heads=4, head_dim=256, max_len=8192)
    options = scores(given, fields) | {"softcap": bound(given, "attn_logit_softcapping", 50.0)}
    kinds = kinds_of(given, fields["n_layers"], lambda layer: layer % 2 == 0)
    size = given.size("sliding_window", 4096) if WINDOW in kinds or not given.null("sliding_window") else None
    turns = [attention(given, **options, window=size if kind == WINDOW else None) for kind in turn(kinds)]
    return around(given, fields, bound(given, "final_logit_softcapping", 30.0)) | {
        **(attention(given, **options) if len(turns) > 1 else turns[0]),
        "pattern": turns if len(turns) > 1 else [],
    }


def scores(given: Given, fields: dict[str, Any]) -> dict[str, Any]:
    """Options of attention that all layers have."""
    asked = given.number("query_pre_attn_scalar", 256)
    if asked <= 0:
        raise given.wrong("query_pre_attn_scalar", "a number above 0")
    scale = None if asked == fields["head_dim"] else asked**-0.5
    return {"bias": given.flag("attention_bias", False), "scale": scale}


def around(given: Given, fields: dict[str, Any], softcap: float | None) -> dict[str, Any]:
    """What Gemma 2 and 3 have around attention, beside these fields."""
    given.passed("cache_implementation", "hidden_act")  # of activations the reference reads another key
    return divided(given, fields) | {
        "norm": fields["norm"] | {"around_one": True},
        "sandwich_norm": True,
        "feed_forward": GATED[given.word("hidden_activation", "gelu_pytorch_tanh", GATED)].written(),
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
        "scale_embedding": True,
        "logit_softcap": softcap,
    }


def bound(given: Given, key: str, default: float | None) -> float | None:
    """null is none."""
    return given.number(key, default) if given.has(key) or (default and not given.null(key)) else None


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    options = part(config, "attention", 0).options
    scale = options.get("scale")
    return {key: value for key, value in said(config).items() if key != "hidden_act"} | {
        "hidden_activation": activation_of(config.feed_forward, GATED),
        "attention_bias": options.get("bias") is True,
        "query_pre_attn_scalar": config.head_dim if scale is None else round(scale**-2),
        "attn_logit_softcapping": options.get("softcap"),
        "final_logit_softcapping": config.logit_softcap,
        **windows_said(config, config.max_len),
    }


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
    *one(f"{BLOCK}.post_attention_layernorm.weight", f"{LAYER}.attn_residual.after.weight"),
    *one(f"{BLOCK}.pre_feedforward_layernorm.weight", f"{LAYER}.ffn_residual.norm.weight"),
    *one(f"{BLOCK}.post_feedforward_layernorm.weight", f"{LAYER}.ffn_residual.after.weight"),
    *one(f"{BLOCK}.mlp.gate_proj.weight", f"{LAYER}.ffn.gate_proj.weight"),
    *one(f"{BLOCK}.mlp.up_proj.weight", f"{LAYER}.ffn.up_proj.weight"),
    *one(f"{BLOCK}.mlp.down_proj.weight", f"{LAYER}.ffn.down_proj.weight"),
    *one("model.norm.weight", f"{FINAL_NORM}.weight"),
    *one("lm_head.weight", HEAD),
)
GEMMA2 = FAMILY.register("gemma2")(
    Family({"CausalLM": "Gemma2ForCausalLM"}, read, write, TABLE, "model.", BUFFERS, TIED)
)
