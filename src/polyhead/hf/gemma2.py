"""Gemma 2 (2024): a window in every second layer, bounded scores, norms before and after whose weights lie around one."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, GATED, HEAD, LAYER, Family, activation
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, flag, number, only, passed, unsaid
from polyhead.hf.llama import BLOCK, BUFFERS, DIVIDED, TIED, keys, rotary
from polyhead.hf.pattern import WINDOW, kinds_of, part, turn, windows_said
from polyhead.hf.table import both, one


def scale(given: Given, fields: Fields) -> Fields:
    """What scores are multiplied by, as the number whose root divides them."""
    asked = given.number("query_pre_attn_scalar", 256)
    if asked <= 0:
        raise given.wrong("query_pre_attn_scalar", "a number above 0")
    return {"attention": {"scale": None if asked == fields["head_dim"] else asked**-0.5}}


def scale_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``scale``."""
    scale = part(config, "attention", 0).options.get("scale")
    return {"query_pre_attn_scalar": config.head_dim if scale is None else round(scale**-2)}


def layers(given: Given, fields: Fields) -> Fields:
    """Without a word on the layers every second one has a window, the first too."""
    kinds, whole = kinds_of(given, fields["n_layers"], lambda layer: layer % 2 == 0), fields["attention"]
    size = given.size("sliding_window", 4096) if WINDOW in kinds or not given.null("sliding_window") else None
    turns = [{"attention": whole | {"window": size if kind == WINDOW else None}} for kind in turn(kinds)]
    return {"pattern": turns} if len(turns) > 1 else turns[0]


# what Gemma 2 and 3 have alike
BOTH = (
    unsaid(hidden_size=2304, num_hidden_layers=26, num_attention_heads=8, head_dim=256),
    unsaid(tie_word_embeddings=True),
    passed("cache_implementation", "hidden_act"),  # of activations the reference reads another key
    *keys(
        kv_heads=4, feed_forward=activation("hidden_activation", "gelu_pytorch_tanh", GATED), position=Key()
    ),
    DIVIDED,
    fixed(norm={"around_one": True}, sandwich_norm=True, scale_embedding=True),
    flag("attention_bias", "attention.bias", False),
    Key(scale, scale_said),
)
KEYS = (
    unsaid(max_position_embeddings=8192),
    passed("sliding_window_size"),  # the reference reads another in its place
    only("use_bidirectional_attention", False),
    *BOTH,
    rotary(),
    number("attn_logit_softcapping", "attention.softcap", 50.0, optional=True),
    number("final_logit_softcapping", "logit_softcap", 30.0, optional=True),
    Key(layers, lambda config: windows_said(config, config.max_len)),
)
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
FAMILY.register("gemma2")(Family({"CausalLM": "Gemma2ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
