"""T5 (Raffel et al., 2020), its version 1.1, mT5 (Xue et al., 2020): biases of distance, nothing else has a bias."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, GATED, HEAD, PLAIN, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, norm, number, only, passed, size, unsaid
from polyhead.hf.table import Row, one
from polyhead.registry import Choice

# feed-forwards by their published names; "gated-gelu" is the tanh form there
FEED_FORWARDS = {
    **{name: Choice(choice.name, **choice.options, bias=False) for name, choice in PLAIN.items()},
    "gated-gelu": Choice("geglu", tanh=True, bias=False),
    **{f"gated-{name}": choice for name, choice in GATED.items() if name != "gelu"},
}


def network(given: Given, fields: Fields) -> Fields:
    """The feed-forward, of which a file may also say what follows from its name."""
    name = given.word("feed_forward_proj", "relu", FEED_FORWARDS)
    given.only("is_gated_act", name.startswith("gated-"))
    # where it says another, the reference takes that
    given.only("dense_act_fn", "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-"))
    return {"feed_forward": FEED_FORWARDS[name].written()}


def network_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``network``."""
    name = activation_of(config.feed_forward, FEED_FORWARDS)
    return {"feed_forward_proj": name, "is_gated_act": name.startswith("gated-")}


def head(given: Given, fields: Fields) -> Fields:
    """tie_word_embeddings false stands for 1.1: a head of its own, which reads what is not scaled. Newer files say the
    latter as scale_decoder_outputs, and of the head nothing: it is its own where it is there."""
    tied = given.flag("tie_word_embeddings", True)
    scaled = given.flag("scale_decoder_outputs", tied and not given.null("scale_decoder_outputs"))
    own = not tied or (not scaled and given.holds("lm_head.weight", False))
    return {"tie_embeddings": "inputs" if own else "all", "scale_output": scaled}


def head_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``head``."""
    return {
        "tie_word_embeddings": config.tie_embeddings == "all",
        "scale_decoder_outputs": config.scale_output,
    }


KEYS = (
    passed("initializer_factor", "classifier_dropout"),
    fixed(kind="encoder-decoder", norm_first=True, scale_embedding=False, init="normal"),
    fixed(attention={"name": "softmax", "scale": 1.0, "bias": False}, position="t5"),
    size("vocab_size", "vocab_size"),
    size("d_model", "d_model", 512),
    size("num_layers", "n_layers", 6),
    size("num_decoder_layers", "n_decoder_layers", optional=True),
    size("num_heads", "n_heads", 8),
    size("d_kv", "head_dim", 64),
    size("d_ff", "d_ff", 2048),
    size("n_positions", "max_len", 512),
    size("relative_attention_num_buckets", "position.buckets", 32),
    size("relative_attention_max_distance", "position.max_distance", 128),
    norm("layer_norm_epsilon", "rmsnorm", 1e-6),
    number("dropout_rate", "dropout", 0.1),
    Key(network, network_said),
    Key(head, head_said),
    Key(write=lambda config: {"is_encoder_decoder": True}),
)
# 1.1, whose head is its own where it is there, whatever is said of ties
KEYS_MT5 = (
    only("scale_decoder_outputs", False),
    unsaid(num_layers=8, num_heads=6, d_ff=1024, feed_forward_proj="gated-gelu", scale_decoder_outputs=False),
    *KEYS,
)


def stack(side: str, parts: dict[str, tuple[str, str]]) -> list[Row]:
    """The rows of the encoder or of the decoder, whose attentions are numbered."""
    theirs, ours = f"{side}.block.{{n}}.layer", f"{side}.layers.{{n}}"
    bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    found = one(bias, f"{side}_embedding.position.weight")
    for place, (name, attention) in parts.items():
        for x in "qkvo":
            found += one(f"{theirs}.{place}.{name}.{x}.weight", f"{ours}.{attention}.{x}_proj.weight")
        found += one(f"{theirs}.{place}.layer_norm.weight", f"{ours}.{attention}_residual.norm.weight")
    last = f"{theirs}.{len(parts)}"
    return [
        *found,
        *one(
            f"{last}.DenseReluDense.wi.weight",
            f"{ours}.ffn.up_proj.weight",
            where=lambda config: not gated(config),
        ),
        *one(f"{last}.DenseReluDense.wi_0.weight", f"{ours}.ffn.gate_proj.weight"),
        *one(f"{last}.DenseReluDense.wi_1.weight", f"{ours}.ffn.up_proj.weight", where=gated),
        *one(f"{last}.DenseReluDense.wo.weight", f"{ours}.ffn.down_proj.weight"),
        *one(f"{last}.layer_norm.weight", f"{ours}.ffn_residual.norm.weight"),
        *one(f"{side}.final_layer_norm.weight", f"{side}.final_norm.weight"),
    ]


def gated(config: ModelConfig) -> bool:
    """Whether the feed-forward has a gate."""
    return config.feed_forward.name in {choice.name for choice in GATED.values()}


TABLE = (
    *one("shared.weight", "encoder_embedding.token.weight"),
    *stack("encoder", {"0": ("SelfAttention", "attn")}),
    *stack("decoder", {"0": ("SelfAttention", "attn"), "1": ("EncDecAttention", "cross")}),
    *one("lm_head.weight", HEAD),
)
# of old files, never read
BUFFERS = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
TIED = dict.fromkeys(
    ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"
)
T5 = FAMILY.register("t5")(Family({"Seq2Seq": "T5ForConditionalGeneration"}, KEYS, TABLE, "", BUFFERS, TIED))
FAMILY.register("mt5")(Family({"Seq2Seq": "MT5ForConditionalGeneration"}, KEYS_MT5, TABLE, "", BUFFERS, TIED))
