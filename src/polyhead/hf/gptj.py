"""GPT-J (Wang & Komatsuzaki, 2021): sub-layers side by side behind one norm, rope on pairs side by side of some features."""

from __future__ import annotations

import math
from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, Family, activation
from polyhead.hf.given import Given
from polyhead.hf.gpt2 import SUMMARY
from polyhead.hf.keys import DECODER, ONE_NORM, Fields, Key, fixed, norm, number, only, passed, size, tied
from polyhead.hf.table import both, one
from polyhead.hf.vocabularies import byte_level


def turning(given: Given, fields: Fields) -> Fields:
    """The features that turn as a part of all, such that as many are counted again."""
    if given.null("rotary_dim"):
        raise given.wrong("rotary_dim", "how many features of a head turn")
    width, head_dim = given.size("rotary_dim", 64), fields["d_model"] // fields["n_heads"]
    fraction = width / max(1, head_dim)
    whole = int(head_dim * fraction) == width
    return {"position": {"fraction": fraction if whole else math.nextafter(fraction, math.inf)}}


def turning_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``turning``."""
    assert config.head_dim is not None
    return {"rotary_dim": int(config.head_dim * config.position.options.get("fraction", 1.0))}


# what is not given is as in GPT-J-6B
KEYS = (
    DECODER,
    passed("n_ctx", "scale_attn_weights", *SUMMARY),
    only("rotary", True),
    size("vocab_size", "vocab_size", 50400),
    size("n_embd", "d_model", 4096),
    size("n_layer", "n_layers", 28),
    size("n_head", "n_heads", 16),
    size("n_inner", "d_ff", optional=True),
    size("n_positions", "max_len", 2048),
    fixed(block=ONE_NORM, attention={"bias": False}, head_bias=True),
    fixed(position={"name": "rope", "layout": "interleaved"}),
    Key(turning, turning_said),
    activation("activation_function", "gelu_new"),
    norm("layer_norm_epsilon", "layernorm", 1e-5),
    number("attn_pdrop", "attention.dropout", 0.0),
    number("resid_pdrop", "dropout", 0.0),
    passed("embd_pdrop", places="dropout"),
    tied(False),
)
BLOCK = "transformer.h.{n}"
TABLE = (
    *one("transformer.wte.weight", EMBEDDING),
    *both(f"{BLOCK}.ln_1", f"{LAYER}.attn_residual.norm"),
    *(row for x in "qkv" for row in both(f"{BLOCK}.attn.{x}_proj", f"{LAYER}.attn.{x}_proj")),
    *both(f"{BLOCK}.attn.out_proj", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.mlp.fc_in", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.mlp.fc_out", f"{LAYER}.ffn.down_proj"),
    *both("transformer.ln_f", FINAL_NORM),
    *one("lm_head.weight", HEAD),
    *one("lm_head.bias", "head.bias"),
)
BUFFERS = r"transformer\.h\.\d+\.attn\.(bias|masked_bias)"
TIED = {"lm_head.weight": "transformer.wte.weight"}
FAMILY.register("gptj")(
    Family(
        {"CausalLM": "GPTJForCausalLM"},
        KEYS,
        TABLE,
        "transformer.",
        BUFFERS,
        TIED,
        vocabulary=byte_level,
    )
)
