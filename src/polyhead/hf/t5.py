"""T5 (Raffel et al., 2020), its version 1.1, mT5 (Xue et al., 2020): biases of distance, nothing else has a bias."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, GATED, HEAD, PLAIN, Family, activation_of
from polyhead.hf.given import Given
from polyhead.hf.table import Row, one
from polyhead.registry import Choice

# feed-forwards by their published names; "gated-gelu" is the tanh form there
FEED_FORWARDS = {
    **{name: Choice(choice.name, **choice.options, bias=False) for name, choice in PLAIN.items()},
    "gated-gelu": Choice("geglu", tanh=True, bias=False),
    **{f"gated-{name}": choice for name, choice in GATED.items() if name != "gelu"},
}


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig.

    tie_word_embeddings false stands for 1.1: a head of its own, which reads what is not scaled. Newer files say the
    latter as scale_decoder_outputs, and of the head nothing: it is its own where it is there.
    """
    given.passed("initializer_factor", "classifier_dropout")
    tied = given.flag("tie_word_embeddings", True)
    scaled = given.flag("scale_decoder_outputs", tied and not given.null("scale_decoder_outputs"))
    name = given.word("feed_forward_proj", "relu", FEED_FORWARDS)
    given.only("is_gated_act", name.startswith("gated-"))
    # where it says another, the reference takes that
    given.only("dense_act_fn", "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-"))
    own = not tied or (not scaled and given.holds("lm_head.weight", False))
    n_layers = given.size("num_layers", 6)
    return {
        "kind": "encoder-decoder",
        "vocab_size": given.size("vocab_size"),
        "d_model": given.size("d_model", 512),
        "n_layers": n_layers,
        "n_decoder_layers": given.size("num_decoder_layers", n_layers),
        "n_heads": given.size("num_heads", 8),
        "head_dim": given.size("d_kv", 64),
        "d_ff": given.size("d_ff", 2048),
        "max_len": given.size("n_positions", 512),
        "attention": {"name": "softmax", "scale": 1.0, "bias": False},
        "position": {
            "name": "t5",
            "buckets": given.size("relative_attention_num_buckets", 32),
            "max_distance": given.size("relative_attention_max_distance", 128),
        },
        "norm": {"name": "rmsnorm", "eps": given.number("layer_norm_epsilon", 1e-6)},
        "norm_first": True,
        "feed_forward": FEED_FORWARDS[name].written(),
        "dropout": given.number("dropout_rate", 0.1),
        "tie_embeddings": "inputs" if own else "all",
        "scale_embedding": False,
        "scale_output": scaled,
        "init": "normal",
    }


def read_mt5(given: Given) -> dict[str, Any]:
    """config.json of mT5 -> fields of ModelConfig: 1.1, whose head is its own where it is there, whatever is said of ties."""
    given.only("scale_decoder_outputs", False)
    given.assume(
        num_layers=8, num_heads=6, d_ff=1024, feed_forward_proj="gated-gelu", scale_decoder_outputs=False
    )
    return read(given)


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    position = config.position.options
    name = activation_of(config.feed_forward, FEED_FORWARDS)
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "d_kv": config.head_dim,
        "d_ff": config.d_ff,
        "num_layers": config.n_layers,
        "num_decoder_layers": config.decoder_layers,
        "num_heads": config.n_heads,
        "n_positions": config.max_len,
        "relative_attention_num_buckets": position.get("buckets", 32),
        "relative_attention_max_distance": position.get("max_distance", 128),
        "layer_norm_epsilon": config.norm.options.get("eps", 1e-6),
        "dropout_rate": config.dropout,
        "feed_forward_proj": name,
        "is_gated_act": name.startswith("gated-"),
        "is_encoder_decoder": True,
        "tie_word_embeddings": config.tie_embeddings == "all",
        "scale_decoder_outputs": config.scale_output,
    }


def stack(side: str, parts: dict[str, tuple[str, str]]) -> list[Row]:
    """The rows of the encoder or of the decoder, whose attentions are numbered."""
    theirs, ours = f"{side}.block.{{n}}.layer", f"{side}.layers.{{n}}"
    bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    found = one(bias, f"{side}_embedding.position.weight")
    for number, (name, attention) in parts.items():
        for x in "qkvo":
            found += one(f"{theirs}.{number}.{name}.{x}.weight", f"{ours}.{attention}.{x}_proj.weight")
        found += one(f"{theirs}.{number}.layer_norm.weight", f"{ours}.{attention}_residual.norm.weight")
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
T5 = FAMILY.register("t5")(
    Family({"Seq2Seq": "T5ForConditionalGeneration"}, read, write, TABLE, "", BUFFERS, TIED)
)
MT5 = FAMILY.register("mt5")(
    Family({"Seq2Seq": "MT5ForConditionalGeneration"}, read_mt5, write, TABLE, "", BUFFERS, TIED)
)
