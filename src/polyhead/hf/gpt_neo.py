"""GPT-Neo (Black et al., 2021): GPT-2 with windows in every second layer, scores that are not scaled, and few biases."""

from __future__ import annotations

from itertools import islice
from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, Family, activation
from polyhead.hf.given import Given
from polyhead.hf.gpt2 import SUMMARY
from polyhead.hf.keys import DECODER, Fields, Key, fixed, norm, number, passed, size, tied
from polyhead.hf.pattern import MOST, part, turn
from polyhead.hf.table import both, one
from polyhead.hf.vocabularies import byte_level

LOCAL, GLOBAL = "local", "global"


def layers(given: Given, fields: Fields) -> Fields:
    """Which of them see all and which a window."""
    window = {"attention": fields["attention"] | {"window": given.size("window_size", 256)}}
    turns = turn([window if kind == LOCAL else {} for kind in kinds(given, fields["n_layers"])])
    return {"pattern": turns if any(turns) else []}


def kinds(given: Given, n_layers: int) -> list[str]:
    """Of each layer whether it sees all or a window, in a list or else from pairs of such words and how often they come in
    turn, as the reference, where a file has both."""
    given.passed("attention_types")
    if found := given.names("attention_layers"):
        if len(found) != n_layers or not {*found} <= {LOCAL, GLOBAL}:
            raise given.wrong("attention_layers", f"{LOCAL} or {GLOBAL} for each of {n_layers} layers")
        return found
    pairs = given.values.get("attention_types", [[[GLOBAL, LOCAL], 12]])
    try:
        words = (word for kinds, times in pairs if kinds for _ in range(times) for word in kinds)
        found = list(islice(words, min(n_layers, MOST) + 1))
    except (TypeError, ValueError):
        found = []
    if len(found) != n_layers or any(word not in (LOCAL, GLOBAL) for word in found):
        raise given.wrong("attention_types", f"{LOCAL} or {GLOBAL} for each of {n_layers} layers")
    return found


def layers_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``layers``."""
    sizes = [part(config, "attention", i).options.get("window") for i in range(config.n_layers)]
    layers = [GLOBAL if size is None else LOCAL for size in sizes]
    return {
        "attention_types": [[layers, 1]],
        "attention_layers": layers,
        "window_size": next((size for size in sizes if size is not None), 256),
    }


# what is not given is as in GPT-Neo 1.3B
KEYS = (
    DECODER,
    passed("classifier_dropout", *SUMMARY),
    size("vocab_size", "vocab_size", 50257),
    size("hidden_size", "d_model", 2048),
    size("num_layers", "n_layers", 24),
    size("num_heads", "n_heads", 16),
    size("intermediate_size", "d_ff", optional=True),
    size("max_position_embeddings", "max_len", 2048),
    fixed(position="learned", attention={"bias": "o", "scale": 1.0}),
    activation("activation_function", "gelu_new"),
    norm("layer_norm_epsilon", "layernorm", 1e-5),
    number("attention_dropout", "attention.dropout", 0.0),
    number("resid_dropout", "dropout", 0.0),
    passed("embed_dropout", places="dropout"),
    tied(True),
    Key(layers, layers_said),
)
BLOCK = "transformer.h.{n}"
TABLE = (
    *one("transformer.wte.weight", EMBEDDING),
    *one("transformer.wpe.weight", "embedding.position.weight"),
    *both(f"{BLOCK}.ln_1", f"{LAYER}.attn_residual.norm"),
    *(row for x in "qkv" for row in both(f"{BLOCK}.attn.attention.{x}_proj", f"{LAYER}.attn.{x}_proj")),
    *both(f"{BLOCK}.attn.attention.out_proj", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.ln_2", f"{LAYER}.ffn_residual.norm"),
    *both(f"{BLOCK}.mlp.c_fc", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.mlp.c_proj", f"{LAYER}.ffn.down_proj"),
    *both("transformer.ln_f", FINAL_NORM),
    *one("lm_head.weight", HEAD),
)
BUFFERS = r"transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)"
TIED = {"lm_head.weight": "transformer.wte.weight"}
FAMILY.register("gpt_neo")(
    Family(
        {"CausalLM": "GPTNeoForCausalLM"},
        KEYS,
        TABLE,
        "transformer.",
        BUFFERS,
        TIED,
        vocabulary=byte_level,
    )
)
