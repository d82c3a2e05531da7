"""BART (Lewis et al., 2019), and the table that mBART, Marian and M2M100 have as well."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, HEAD, PLAIN, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.table import Row, Step, both, one
from polyhead.hf.vocabularies import framed_bytes
from polyhead.registry import Choice
from polyhead.text.specials import ROLES

BIAS = "final_logits_bias"
ROW = Step(lambda ours: ours[0][None], lambda theirs, rows: [theirs[0]])  # (V,) as (1, V)


def common(given: Given, *, activation: str = "gelu", scaled: bool = False) -> dict[str, Any]:
    """What these families say alike; the activation and the scale of embeddings are those where nothing is said."""
    given.passed(
        "init_std",
        "encoder_layerdrop",
        "decoder_layerdrop",
        "classifier_dropout",
        "classif_dropout",
        "num_hidden_layers",
    )
    given.only("tie_word_embeddings", True)
    # of the decoder nothing follows from the encoder
    given.assume(decoder_attention_heads=16, decoder_ffn_dim=4096)
    n_heads, d_ff = given.size("encoder_attention_heads", 16), given.size("encoder_ffn_dim", 4096)
    given.only("decoder_attention_heads", n_heads)
    given.only("decoder_ffn_dim", d_ff)
    plain = PLAIN[given.word("activation_function", activation, PLAIN)]
    return {
        "kind": "encoder-decoder",
        "vocab_size": given.size("vocab_size"),
        "d_model": given.size("d_model", 1024),
        "n_layers": given.size("encoder_layers", 12),
        "n_decoder_layers": given.size("decoder_layers", 12),
        "n_heads": n_heads,
        "d_ff": d_ff,
        "max_len": given.size("max_position_embeddings", 1024),
        "attention": {"name": "softmax", "dropout": given.number("attention_dropout", 0.0)},
        "norm": "layernorm",
        "feed_forward": Choice(
            plain.name, **plain.options, dropout=given.number("activation_dropout", 0.0)
        ).written(),
        "dropout": given.number("dropout", 0.1),
        "tie_embeddings": "all",
        "scale_embedding": given.flag("scale_embedding", scaled),
        "head_bias": given.holds(BIAS, True),
        "init": "normal",
    }


def said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``common``."""
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "encoder_layers": config.n_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.n_heads,
        "decoder_attention_heads": config.n_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "max_position_embeddings": config.max_len,
        "activation_function": activation_of(config.feed_forward, PLAIN),
        "attention_dropout": config.attention.options.get("dropout", 0.0),
        "activation_dropout": config.feed_forward.options.get("dropout", 0.0),
        "dropout": config.dropout,
        "scale_embedding": config.scale_embedding,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
    }


def fixed(given: Given, *, pre: bool, embedding_norm: bool, static: bool) -> None:
    """Keys of configs before 2021, which say what a family is."""
    given.only("normalize_before", pre)
    given.only("add_final_layer_norm", pre)
    given.only("normalize_embedding", embedding_norm)
    given.only("static_position_embeddings", static)
    given.only("add_bias_logits", False)
    given.passed("extra_pos_embeddings", "force_bos_token_to_be_generated", "save_step")


def read(given: Given, pre: bool = False) -> dict[str, Any]:
    """config.json -> fields of ModelConfig, with norms before the sub-layers (``pre``) or behind them."""
    fixed(given, pre=pre, embedding_norm=True, static=False)
    return common(given) | {
        "position": {"name": "learned", "offset": 2},
        "embedding_norm": True,
        "norm_first": pre,
    }


def stack(side: str) -> list[Row]:
    """The rows of the encoder or of the decoder."""
    theirs, ours = f"model.{side}.layers.{{n}}", f"{side}.layers.{{n}}"
    found = [
        *one(f"model.{side}.embed_positions.weight", f"{side}_embedding.position.weight"),
        *both(f"model.{side}.layernorm_embedding", f"{side}_embedding.norm"),
    ]
    for name, attention, residual in [("self_attn", "attn", "attn"), ("encoder_attn", "cross", "cross")]:
        for x in "qkv":
            found += both(f"{theirs}.{name}.{x}_proj", f"{ours}.{attention}.{x}_proj")
        found += both(f"{theirs}.{name}.out_proj", f"{ours}.{attention}.o_proj")
        found += both(f"{theirs}.{name}_layer_norm", f"{ours}.{residual}_residual.norm")
    return [
        *found,
        *both(f"{theirs}.fc1", f"{ours}.ffn.up_proj"),
        *both(f"{theirs}.fc2", f"{ours}.ffn.down_proj"),
        *both(f"{theirs}.final_layer_norm", f"{ours}.ffn_residual.norm"),
        *both(f"model.{side}.layer_norm", f"{side}.final_norm"),
    ]


SHARED, SOURCE, TARGET = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)
LM_HEAD = "lm_head.weight"
TABLE = (
    *one(SHARED, "encoder_embedding.token.weight", where=lambda config: config.tie_embeddings == "all"),
    *one(SOURCE, "encoder_embedding.token.weight", where=lambda config: config.tie_embeddings != "all"),
    *one(TARGET, "decoder_embedding.token.weight"),
    *stack("encoder"),
    *stack("decoder"),
    *one(BIAS, "head.bias", step=ROW),
    *one(LM_HEAD, HEAD),
)
TIED = {SOURCE: SHARED, TARGET: SHARED, LM_HEAD: SHARED}
BUFFERS = r"model\.(en|de)coder\.version"  # of files before 2021
BART = FAMILY.register("bart")(
    Family(
        {"Seq2Seq": "BartForConditionalGeneration"},
        read,
        said,
        TABLE,
        "model.",
        BUFFERS,
        TIED,
        specials=ROLES,
        vocabulary=framed_bytes,
    )
)
