"""GPT-Neo (Black et al., 2021): GPT-2 with windows in every second layer, scores that are not scaled, and few biases."""

from __future__ import annotations

from itertools import islice
from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, PLAIN, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.pattern import MOST, part, turn
from polyhead.hf.table import both, one
from polyhead.hf.vocabularies import byte_level

LOCAL, GLOBAL = "local", "global"


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in GPT-Neo 1.3B."""
    given.passed("embed_dropout", "classifier_dropout")
    given.passed(
        *(f"summary_{key}" for key in ("type", "use_proj", "activation", "first_dropout", "proj_to_labels"))
    )
    d_model, n_layers = given.size("hidden_size", 2048), given.size("num_layers", 24)
    options = {"bias": "o", "scale": 1.0, "dropout": given.number("attention_dropout", 0.0)}
    attention = {"name": "softmax", **options}
    window = {"attention": attention | {"window": given.size("window_size", 256)}}
    turns = turn([window if kind == LOCAL else {} for kind in kinds(given, n_layers)])
    activation = PLAIN[given.word("activation_function", "gelu_new", PLAIN)]
    return {
        "kind": "decoder",
        "vocab_size": given.size("vocab_size", 50257),
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": given.size("num_heads", 16),
        "d_ff": given.size("intermediate_size", 4 * d_model),
        "max_len": given.size("max_position_embeddings", 2048),
        "attention": attention,
        "pattern": turns if any(turns) else [],
        "position": "learned",
        "norm": {"name": "layernorm", "eps": given.number("layer_norm_epsilon", 1e-5)},
        "norm_first": True,
        "feed_forward": activation.written(),
        "dropout": given.number("resid_dropout", 0.0),
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
        "scale_embedding": False,
        "init": "normal",
    }


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


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    sizes = [part(config, "attention", i).options.get("window") for i in range(config.n_layers)]
    layers = [GLOBAL if size is None else LOCAL for size in sizes]
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_layers": config.n_layers,
        "num_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "max_position_embeddings": config.max_len,
        "attention_types": [[layers, 1]],
        "attention_layers": layers,
        "window_size": next((size for size in sizes if size is not None), 256),
        "activation_function": activation_of(config.feed_forward, PLAIN),
        "layer_norm_epsilon": config.norm.options.get("eps", 1e-5),
        "attention_dropout": config.attention.options.get("dropout", 0.0),
        "resid_dropout": config.dropout,
        "embed_dropout": config.dropout,
        "tie_word_embeddings": config.tie_embeddings != "none",
    }


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
GPT_NEO = FAMILY.register("gpt_neo")(
    Family(
        {"CausalLM": "GPTNeoForCausalLM"},
        read,
        write,
        TABLE,
        "transformer.",
        BUFFERS,
        TIED,
        vocabulary=byte_level,
    )
)
