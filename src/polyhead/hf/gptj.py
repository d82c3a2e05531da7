"""GPT-J (Wang & Komatsuzaki, 2021): sub-layers side by side behind one norm, rope on pairs side by side of some features."""

from __future__ import annotations

import math
from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, PLAIN, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.table import both, one
from polyhead.hf.vocabularies import byte_level


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in GPT-J-6B."""
    given.passed("embd_pdrop", "n_ctx", "scale_attn_weights")
    given.passed(
        *(f"summary_{key}" for key in ("type", "use_proj", "activation", "first_dropout", "proj_to_labels"))
    )
    given.only("rotary", True)
    d_model, n_heads = given.size("n_embd", 4096), given.size("n_head", 16)
    activation = PLAIN[given.word("activation_function", "gelu_new", PLAIN)]
    return {
        "kind": "decoder",
        "vocab_size": given.size("vocab_size", 50400),
        "d_model": d_model,
        "n_layers": given.size("n_layer", 28),
        "n_heads": n_heads,
        "d_ff": given.size("n_inner", 4 * d_model),
        "max_len": given.size("n_positions", 2048),
        "block": {"name": "parallel", "one_norm": True},
        "attention": {"name": "softmax", "bias": False, "dropout": given.number("attn_pdrop", 0.0)},
        "position": {"name": "rope", "layout": "interleaved", "fraction": part_of(given, d_model // n_heads)},
        "norm": {"name": "layernorm", "eps": given.number("layer_norm_epsilon", 1e-5)},
        "norm_first": True,
        "feed_forward": activation.written(),
        "dropout": given.number("resid_pdrop", 0.0),
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", False) else "none",
        "scale_embedding": False,
        "head_bias": True,
        "init": "normal",
    }


def part_of(given: Given, head_dim: int) -> float:
    """The features that turn as a part of all, such that as many are counted again."""
    if given.null("rotary_dim"):
        raise given.wrong("rotary_dim", "how many features of a head turn")
    width = given.size("rotary_dim", 64)
    fraction = width / max(1, head_dim)
    return fraction if int(head_dim * fraction) == width else math.nextafter(fraction, math.inf)


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    assert config.head_dim is not None
    return {
        "vocab_size": config.vocab_size,
        "n_embd": config.d_model,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "n_positions": config.max_len,
        "rotary_dim": int(config.head_dim * config.position.options.get("fraction", 1.0)),
        "activation_function": activation_of(config.feed_forward, PLAIN),
        "layer_norm_epsilon": config.norm.options.get("eps", 1e-5),
        "attn_pdrop": config.attention.options.get("dropout", 0.0),
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "tie_word_embeddings": config.tie_embeddings != "none",
    }


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
GPTJ = FAMILY.register("gptj")(
    Family(
        {"CausalLM": "GPTJForCausalLM"},
        read,
        write,
        TABLE,
        "transformer.",
        BUFFERS,
        TIED,
        vocabulary=byte_level,
    )
)
