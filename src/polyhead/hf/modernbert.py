"""ModernBERT (Warner et al., 2024): pre-norm, rotary positions, gated feed-forward, a window in most layers, few biases."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.encoders import EMBEDDING, LAYER, labels_said, model_of, named, top
from polyhead.hf.family import FAMILY, GATED, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.pattern import MOST, WHOLE, WINDOW, part, turn, windows_said
from polyhead.hf.table import FUSED, both, one
from polyhead.nn.pooling import biased
from polyhead.registry import Choice


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig."""
    given.passed(
        "initializer_cutoff_factor",
        "layer_norm_eps",
        "deterministic_flash_attn",
        "reference_compile",
        "mlp_dropout",
    )
    given.passed("repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index")
    given.passed("position_embedding_type", "classifier_dropout")
    model, bias = model_of(given, "ModernBert"), given.flag("mlp_bias", False)
    given.word("classifier_activation", "gelu", ["gelu"])
    map_bias = given.flag("classifier_bias", False)
    pool = {"cls": "first", "mean": "mean"}[given.word("classifier_pooling", "cls", ["cls", "mean"])]
    fields = top(given, model, pooled={"name": pool, "activation": "gelu", "norm": True})
    decoder_bias = given.flag("decoder_bias", True)
    gate = GATED[given.word("hidden_activation", "gelu", GATED)]
    return fields | ({"head_bias": decoder_bias} if model == "MaskedLM" else {}) | layers(given) | {
        "map_bias": None if map_bias == bias else map_bias,
        "kind": "encoder",
        "vocab_size": given.size("vocab_size", 50368),
        "d_model": given.size("hidden_size", 768),
        "n_heads": given.size("num_attention_heads", 12),
        "d_ff": given.size("intermediate_size", 1152),
        "max_len": given.size("max_position_embeddings", 8192),
        "embedding_norm": "first",
        "norm": {"name": "layernorm", "eps": given.number("norm_eps", 1e-5), "bias": given.flag("norm_bias", False)},
        "norm_first": True,
        "feed_forward": Choice(gate.name, **gate.options, bias=bias).written(),
        "dropout": given.number("embedding_dropout", 0.0),
        "scale_embedding": False,
        "init": "normal",
    }  # fmt: skip


def layers(given: Given) -> dict[str, Any]:
    """How many layers there are, and which see a window: layer_types, or in older files each but every third."""
    n_layers, every = given.size("num_hidden_layers", 22), given.size("global_attn_every_n_layers", 3)
    kinds = given.names("layer_types") or [WINDOW if i % every else WHOLE for i in range(min(n_layers, MOST))]
    if n_layers > MOST or len(kinds) != n_layers or not set(kinds) <= {WINDOW, WHOLE}:
        raise given.wrong(
            "layer_types",
            f"{WINDOW} or {WHOLE} for each of at most {MOST} layers; num_hidden_layers is {n_layers}",
        )
    shared = {"bias": given.flag("attention_bias", False), "dropout": given.number("attention_dropout", 0.0)}
    size = given.size("local_attention", 128) // 2 + 1  # to one side, the token itself included
    window = {"name": "softmax", "window": size, **shared}
    rope = {kind: {"name": "rope", "theta": theta} for kind, theta in thetas(given).items()}
    turns = {WHOLE: {}, WINDOW: {"attention": window, "position": rope[WINDOW]}}
    return {
        "n_layers": n_layers,
        "attention": {"name": "softmax", **shared},
        "position": rope[WHOLE],
        "pattern": [turns[kind] for kind in turn(kinds)] if WINDOW in kinds else [],
    }


def thetas(given: Given) -> dict[str, float]:
    """theta of rope in either kind of layer: rope_parameters of each kind, or in older files two keys."""
    found = {
        WHOLE: given.number("global_rope_theta", 160_000.0),
        WINDOW: given.number("local_rope_theta", 10_000.0),
    }
    if given.null("local_rope_theta"):
        found[WINDOW] = found[WHOLE]
    parameters = given.section("rope_parameters")
    if parameters is None:
        return found
    for kind in found:
        if (section := parameters.section(kind)) is not None:
            section.word("rope_type", "default", ["default"])
            found[kind] = section.number("rope_theta", found[kind])
            section.finish()
    parameters.finish()
    return found


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json, with the keys of older readers beside those of today."""
    found = windows_said(config)
    kinds = found["layer_types"]
    theta = {WHOLE: 160_000.0, WINDOW: 10_000.0} | {
        kind: part(config, "position", i).options.get("theta", 10_000.0) for i, kind in enumerate(kinds)
    }
    every = next(
        (
            n
            for n in range(1, len(kinds) + 1)
            if kinds == [WINDOW if i % n else WHOLE for i in range(len(kinds))]
        ),
        None,
    )
    pooling = config.pooling.name if config.pooling else "first"
    bias = bool(config.feed_forward.options.get("bias", False))
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "max_position_embeddings": config.max_len,
        "hidden_activation": activation_of(config.feed_forward, GATED),
        "norm_eps": config.norm.options.get("eps", 1e-5),
        "norm_bias": bool(config.norm.options.get("bias", True)),
        "attention_bias": config.attention.options.get("bias") is True,
        "mlp_bias": bias,
        "classifier_bias": biased(config),
        "classifier_pooling": "mean" if pooling == "mean" else "cls",
        "classifier_activation": "gelu",
        "decoder_bias": config.head_bias,
        "embedding_dropout": config.dropout,
        "mlp_dropout": config.dropout,
        "attention_dropout": config.attention.options.get("dropout", 0.0),
        "local_attention": max(1, 2 * ((found["sliding_window"] or 65) - 1)),
        "layer_types": kinds,
        **({} if every is None else {"global_attn_every_n_layers": every}),
        "global_rope_theta": theta[WHOLE],
        "local_rope_theta": theta[WINDOW],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta[kind]} for kind in theta},
        "tie_word_embeddings": config.tie_embeddings != "none",
        **labels_said(config),
    }


BLOCK = "model.layers.{n}"
TABLE = (
    *one("model.embeddings.tok_embeddings.weight", f"{EMBEDDING}.token.weight"),
    *both("model.embeddings.norm", f"{EMBEDDING}.norm"),
    *both(f"{BLOCK}.attn_norm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.attn.Wqkv", *(f"{LAYER}.attn.{part}_proj" for part in "qkv"), weight=FUSED, bias=FUSED),
    *both(f"{BLOCK}.attn.Wo", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.mlp_norm", f"{LAYER}.ffn_residual.norm"),
    # the activation is that of the first half
    *both(f"{BLOCK}.mlp.Wi", f"{LAYER}.ffn.gate_proj", f"{LAYER}.ffn.up_proj", weight=FUSED, bias=FUSED),
    *both(f"{BLOCK}.mlp.Wo", f"{LAYER}.ffn.down_proj"),
    *both("model.final_norm", "encoder.stack.final_norm"),
    *both("head.dense", "transform"),
    *both("head.norm", "transform_norm"),
    *both("head.dense", "pooler.proj"),
    *both("head.norm", "pooler.norm"),
    *both("decoder", "head"),
    *both("classifier", "classifier"),
)
TIED = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}
MODERNBERT = FAMILY.register("modernbert")(
    Family(named("ModernBert"), read, write, TABLE, "model.", tied=TIED)
)
