"""Gemma 2 (2024): a window in every second layer, bounded scores, norms before and after whose weights lie around one."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, GATED, HEAD, LAYER, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TIED, attention, common, said
from polyhead.hf.table import both, one

WINDOW, WHOLE = "sliding_attention", "full_attention"


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. Without a word on the layers every second one has a window, the first too."""
    # the reference reads others in their place
    given.passed("cache_implementation", "sliding_window_size", "hidden_act")
    given.only("use_bidirectional_attention", False)
    fields = common(given, kv_heads=4, head_dim=256, max_len=8192)
    asked = given.number("query_pre_attn_scalar", 256)
    if asked <= 0:
        raise given.wrong("query_pre_attn_scalar", "a number above 0")
    options = {
        "bias": given.flag("attention_bias", False),
        "scale": None if asked == fields["head_dim"] else asked**-0.5,
        "softcap": _bound(given, "attn_logit_softcapping", 50.0),
    }
    kinds = given.names("layer_types") or list(
        islice(cycle((WINDOW, WHOLE)), min(fields["n_layers"], 10_000))
    )
    if len(kinds) != fields["n_layers"] or not set(kinds) <= {WINDOW, WHOLE}:
        raise given.wrong("layer_types", f"{WINDOW} or {WHOLE} for each of {fields['n_layers']} layers")
    size = given.size("sliding_window", 4096) if WINDOW in kinds or not given.null("sliding_window") else None
    turns = [attention(given, **options, window=size if kind == WINDOW else None) for kind in _turn(kinds)]
    return fields | {
        **(attention(given, **options) if len(turns) > 1 else turns[0]),
        "pattern": turns if len(turns) > 1 else [],
        "norm": fields["norm"] | {"around_one": True},
        "sandwich_norm": True,
        "feed_forward": GATED[given.word("hidden_activation", "gelu_pytorch_tanh", GATED)].written(),
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
        "scale_embedding": True,
        "logit_softcap": _bound(given, "final_logit_softcapping", 30.0),
    }


def _bound(given: Given, key: str, default: float) -> float | None:
    """null is none."""
    return None if given.null(key) else given.number(key, default)


def _turn(kinds: list[str]) -> list[str]:
    """The shortest beginning that all layers repeat."""
    lengths = range(1, len(kinds) + 1)
    return next(kinds[:n] for n in lengths if all(kind == kinds[i % n] for i, kind in enumerate(kinds)))


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    windows = [config.at(i).attention.options.get("window") for i in range(config.n_layers)]
    options = config.attention.options
    scale = options.get("scale")
    return {key: value for key, value in said(config).items() if key != "hidden_act"} | {
        "hidden_activation": activation_of(config.feed_forward, GATED),
        "attention_bias": options.get("bias") is True,
        "query_pre_attn_scalar": config.head_dim if scale is None else round(scale**-2),
        "attn_logit_softcapping": options.get("softcap"),
        "final_logit_softcapping": config.logit_softcap,
        "sliding_window": next((size for size in windows if size is not None), config.max_len),
        "layer_types": [WHOLE if size is None else WINDOW for size in windows],
    }


BLOCK = "model.layers.{n}"
TABLE = (
    *one("model.embed_tokens.weight", EMBEDDING),
    *one(f"{BLOCK}.input_layernorm.weight", f"{LAYER}.attn_residual.norm.weight"),
    *both(f"{BLOCK}.self_attn.q_proj", f"{LAYER}.attn.q_proj"),
    *both(f"{BLOCK}.self_attn.k_proj", f"{LAYER}.attn.k_proj"),
    *both(f"{BLOCK}.self_attn.v_proj", f"{LAYER}.attn.v_proj"),
    *both(f"{BLOCK}.self_attn.o_proj", f"{LAYER}.attn.o_proj"),
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
