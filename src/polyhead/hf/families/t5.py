"""T5 (Raffel et al., 2020), version 1.1, mT5 (Xue et al., 2020): relative position bias, no other biases."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.hf.config_map import (
    ConfigField,
    ConfigReader,
    ModelFields,
    constant,
    defaults,
    ignore,
    map_float,
    map_int,
    map_norm,
    require,
)
from polyhead.hf.family import (
    FAMILY,
    HEAD_WEIGHT,
    HF_ACTIVATIONS,
    HF_GATED_ACTIVATIONS,
    ModelFamily,
    WeightRule,
    activation_name,
    weight,
)

# feed-forwards by their Hugging Face name; "gated-gelu" is the tanh form
FEED_FORWARDS = {
    **{name: Choice(choice.name, **choice.options, bias=False) for name, choice in HF_ACTIVATIONS.items()},
    "gated-gelu": Choice("geglu", tanh=True, bias=False),
    **{f"gated-{name}": choice for name, choice in HF_GATED_ACTIVATIONS.items() if name != "gelu"},
}


def _read_feed_forward(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the feed-forward. A file may also state what follows from its name."""
    name = reader.get_choice("feed_forward_proj", "relu", FEED_FORWARDS)
    reader.require("is_gated_act", name.startswith("gated-"))
    # transformers follows this key if it differs
    reader.require("dense_act_fn", "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-"))
    return {"feed_forward": FEED_FORWARDS[name].to_config()}


def _write_feed_forward(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_feed_forward``."""
    name = activation_name(config.feed_forward, FEED_FORWARDS)
    return {"feed_forward_proj": name, "is_gated_act": name.startswith("gated-")}


def _read_lm_head(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read head and output scale. tie_word_embeddings false means 1.1: an untied head with unscaled input.

    Newer files state the scale as scale_decoder_outputs and nothing of the head: it is untied if its tensor
    is present.
    """
    is_tied = reader.get_bool("tie_word_embeddings", True)
    is_scaled = reader.get_bool(
        "scale_decoder_outputs", is_tied and not reader.is_null("scale_decoder_outputs")
    )
    is_untied = not is_tied or (not is_scaled and reader.has_tensor("lm_head.weight", False))
    return {"tie_embeddings": "inputs" if is_untied else "all", "logits_scale": is_scaled}


KEYS = (
    ignore("initializer_factor", "classifier_dropout"),
    constant(kind="encoder-decoder", norm_first=True, scale_embedding=False, init="normal"),
    constant(attention={"name": "softmax", "scale": 1.0, "bias": False}, position="t5"),
    map_int("vocab_size", "vocab_size"),
    map_int("d_model", "d_model", 512),
    map_int("num_layers", "n_layers", 6),
    map_int("num_decoder_layers", "n_decoder_layers", optional=True),
    map_int("num_heads", "n_heads", 8),
    map_int("d_kv", "head_dim", 64),
    map_int("d_ff", "d_ff", 2048),
    map_int("n_positions", "max_len", 512),
    map_int("relative_attention_num_buckets", "position.buckets", 32),
    map_int("relative_attention_max_distance", "position.max_distance", 128),
    map_norm("layer_norm_epsilon", "rmsnorm", 1e-6),
    map_float("dropout_rate", "dropout", 0.1),
    ConfigField(_read_feed_forward, _write_feed_forward),
    ConfigField(
        _read_lm_head,
        lambda config: (
            {
                "tie_word_embeddings": config.tie_embeddings == "all",
                "scale_decoder_outputs": config.logits_scale,
            }
        ),
    ),
    ConfigField(write=lambda config: {"is_encoder_decoder": True}),
)
# version 1.1, whose head is untied if it is present, whatever tie_word_embeddings is
KEYS_MT5 = (
    require("scale_decoder_outputs", False),
    defaults(
        num_layers=8, num_heads=6, d_ff=1024, feed_forward_proj="gated-gelu", scale_decoder_outputs=False
    ),
    *KEYS,
)


def _stack_rules(side: str, attentions: dict[str, tuple[str, str]]) -> list[WeightRule]:
    """Return the rows of the encoder or the decoder; ``attentions`` maps the number of a sub-layer to its
    names.
    """
    hf_block, layer = f"{side}.block.{{n}}.layer", f"{side}.layers.{{n}}"
    bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    rules = weight(bias, f"{side}_embedding.position.weight")
    for index, (name, attention) in attentions.items():
        for x in "qkvo":
            rules += weight(f"{hf_block}.{index}.{name}.{x}.weight", f"{layer}.{attention}.{x}_proj.weight")
        rules += weight(f"{hf_block}.{index}.layer_norm.weight", f"{layer}.{attention}_residual.norm.weight")
    last = f"{hf_block}.{len(attentions)}"
    return [
        *rules,
        *weight(
            f"{last}.DenseReluDense.wi.weight",
            f"{layer}.ffn.up_proj.weight",
            condition=lambda config: not _is_gated(config),
        ),
        *weight(f"{last}.DenseReluDense.wi_0.weight", f"{layer}.ffn.gate_proj.weight"),
        *weight(f"{last}.DenseReluDense.wi_1.weight", f"{layer}.ffn.up_proj.weight", condition=_is_gated),
        *weight(f"{last}.DenseReluDense.wo.weight", f"{layer}.ffn.down_proj.weight"),
        *weight(f"{last}.layer_norm.weight", f"{layer}.ffn_residual.norm.weight"),
        *weight(f"{side}.final_layer_norm.weight", f"{side}.final_norm.weight"),
    ]


def _is_gated(config: ModelConfig) -> bool:
    """Return whether the feed-forward has a gate."""
    return config.feed_forward.name in {choice.name for choice in HF_GATED_ACTIVATIONS.values()}


TABLE = (
    *weight("shared.weight", "encoder_embedding.token.weight"),
    *_stack_rules("encoder", {"0": ("SelfAttention", "attn")}),
    *_stack_rules("decoder", {"0": ("SelfAttention", "attn"), "1": ("EncDecAttention", "cross")}),
    *weight("lm_head.weight", HEAD_WEIGHT),
)
# of old files, never read
BUFFERS = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
TIED = dict.fromkeys(
    ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"
)
FAMILY.register("t5")(ModelFamily({"Seq2Seq": "T5ForConditionalGeneration"}, KEYS, TABLE, "", BUFFERS, TIED))
FAMILY.register("mt5")(
    ModelFamily({"Seq2Seq": "MT5ForConditionalGeneration"}, KEYS_MT5, TABLE, "", BUFFERS, TIED)
)
