"""GPT-NeoX, BLOOM and Falcon: families with the names of Megatron, and q, k and v interleaved by head."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import (
    DECODER,
    ConfigField,
    ConfigReader,
    ModelFields,
    constant,
    defaults,
    ignore,
    map_bool,
    map_float,
    map_int,
    map_norm,
    map_sizes,
    map_tied_embeddings,
    require,
)
from polyhead.hf.families.llama import map_rope, read_rope, write_rope
from polyhead.hf.family import (
    STACK_LAYER,
    WeightRule,
    decoder_rules,
    linear,
    map_activation,
    per_head_qkv,
    register_decoder,
)

# GPT-NeoX (Black et al., 2022) and Pythia: parallel sub-layers, partial rope, q, k and v interleaved by
# head.
THETA, FRACTION = "rotary_emb_base", "rotary_pct"


def _write_position(config: ModelConfig) -> dict[str, Any]:
    """Write rope with the keys of this family."""
    values = write_rope(config.position.options, FRACTION)
    return {THETA: values["rope_theta"], **{key: values[key] for key in (FRACTION, "rope_parameters")}}


def megatron_rules(
    block: str,
    attention: str,
    embedding: str,
    final_norm: str,
    *,
    head: str = "lm_head",
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm"),
) -> tuple[WeightRule, ...]:
    """Return the rows of models with the names of Megatron, and q, k and v interleaved by head."""
    return decoder_rules(
        block,
        embedding=embedding,
        norms=norms,
        qkv=f"{attention}.query_key_value",
        output=f"{attention}.dense",
        feed_forward=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        final_norm=final_norm,
        head=head,
        qkv_weight=per_head_qkv,
        qkv_bias=per_head_qkv,
    )


# defaults of GPT-NeoX-20B
NEOX_KEYS = (
    DECODER,
    defaults(rotary_pct=0.25),
    ignore("classifier_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"),
    *map_sizes(vocab_size=50432, d_model=6144, n_layers=44, n_heads=64, d_ff=24576, max_len=2048),
    ConfigField(
        lambda reader, fields: {
            "position": read_rope(reader, fields["max_len"], theta_key=THETA, fraction_key=FRACTION)
        },
        _write_position,
    ),
    map_bool("use_parallel_residual", "block.name", True, true_value="parallel", false_value="transformer"),
    map_bool("attention_bias", "attention.bias", True),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_activation("hidden_act", "gelu"),
    map_norm("layer_norm_eps", "layernorm", 1e-5),
    map_float("hidden_dropout", "dropout", 0.0),
    map_tied_embeddings(False),
)
NEOX_TABLE = megatron_rules(
    "gpt_neox.layers.{n}", "attention", "gpt_neox.embed_in", "gpt_neox.final_layer_norm", head="embed_out"
)
register_decoder(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    NEOX_KEYS,
    NEOX_TABLE,
    "gpt_neox.embed_in",
    head="embed_out",
    buffers=r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
)


# BLOOM (Scao et al., 2022): ALiBi, a norm on the embeddings, q, k and v interleaved by head.
def _map_either_key(name: str, alternative: str, field: str, default: int) -> ConfigField:
    """Map a size with two possible keys."""

    def read(reader: ConfigReader, fields: ModelFields) -> ModelFields:
        key = alternative if reader.has(alternative) and not reader.has(name) else name
        return {field: reader.get_int(key, default)}

    return map_int(name, field, default)._replace(read=read)


def _check_inner_width(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Require the supported width of the feed-forward."""
    reader.require("n_inner", 4 * fields["d_model"])
    return {}


BLOOM_KEYS = (
    DECODER,
    require("apply_residual_connection_post_layernorm", False),
    ignore("slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion"),
    ignore("skip_bias_add", "skip_bias_add_qkv", "offset_alibi"),
    map_int("vocab_size", "vocab_size", 250880),
    _map_either_key("hidden_size", "n_embed", "d_model", 64),
    _map_either_key("n_layer", "num_hidden_layers", "n_layers", 2),
    _map_either_key("n_head", "num_attention_heads", "n_heads", 8),
    ConfigField(_check_inner_width),
    map_int("seq_length", "max_len", 2048),  # of older files; not a limit, as ALiBi has no position table
    constant(position="alibi", attention={"bias": True}, embedding_norm=True),
    constant(feed_forward={"name": "gelu", "tanh": True}),
    map_norm("layer_norm_epsilon", "layernorm", 1e-5),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_float("hidden_dropout", "dropout", 0.0),
    map_tied_embeddings(True),
)
BLOOM_TABLE = (
    *linear("transformer.word_embeddings_layernorm", "embedding.norm"),
    *megatron_rules("transformer.h.{n}", "self_attention", "transformer.word_embeddings", "transformer.ln_f"),
)
register_decoder("bloom", "BloomForCausalLM", BLOOM_KEYS, BLOOM_TABLE, "transformer.word_embeddings")


# Falcon (Almazrouei et al., 2023): multi-query or grouped attention, parallel sub-layers after one norm or
# two, rope.
def _read_architecture(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the old or the new decoder architecture.

    The new one, of 40B and Falcon 2, has any number of key/value heads and one norm or two; the old one has a
    single norm if its sub-layers are parallel.
    """
    is_new = reader.get_bool("new_decoder_architecture", False)
    is_parallel = reader.get_bool("parallel_attn", True)
    multi_query = reader.get_bool("multi_query", True)
    n_kv_heads = reader.get_int("num_kv_heads", fields["n_heads"])
    if is_new:
        reader.require("parallel_attn", True)
    norms = reader.get_int("num_ln_in_parallel_attn", 2 if is_new else 1)
    if norms > 2 or norms == 2 > 1 + is_new:
        raise reader.value_error("num_ln_in_parallel_attn", "1, or 2 with new_decoder_architecture")
    return {
        "n_kv_heads": n_kv_heads if is_new else 1 if multi_query else fields["n_heads"],
        "block": {"name": "parallel", "one_norm": norms == 1} if is_parallel else "transformer",
    }


def _write_architecture(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_architecture``: the new architecture only where the old one does not suffice."""
    is_parallel, has_two_norms = config.block.name == "parallel", _has_two_norms(config)
    return {
        "num_kv_heads": config.kv_heads,
        "new_decoder_architecture": is_parallel
        and (has_two_norms or config.kv_heads not in (1, config.n_heads)),
        "multi_query": config.kv_heads == 1,
        "parallel_attn": is_parallel,
        "num_ln_in_parallel_attn": 2 if has_two_norms else 1,
    }


def _has_two_norms(config: ModelConfig) -> bool:
    """Return whether parallel sub-layers have one norm each."""
    return config.block.name == "parallel" and not config.block.options.get("one_norm")


# defaults of Falcon 7B
FALCON_KEYS = (
    DECODER,
    ignore("auto_map"),  # refers to a copy of this family's code
    require("alibi", False, is_written=True),
    require("apply_residual_connection_post_layernorm", False),
    *map_sizes(
        {"d_ff": "ffn_hidden_size"},
        vocab_size=65024,
        d_model=4544,
        n_layers=32,
        n_heads=71,
        d_ff=None,
        max_len=2048,
    ),
    ConfigField(_read_architecture, _write_architecture),
    map_rope(),
    map_activation("activation", "gelu"),
    map_bool("bias", "attention.bias feed_forward.bias", False),
    map_norm("layer_norm_epsilon", "layernorm", 1e-5),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_float("hidden_dropout", "dropout", 0.0),
    map_tied_embeddings(True),
)
BLOCK = "transformer.h.{n}"
NORMS = {True: ("ln_attn", "ln_mlp"), False: ("input_layernorm", "post_attention_layernorm")}
FALCON_TABLE = (
    *megatron_rules(BLOCK, "self_attention", "transformer.word_embeddings", "transformer.ln_f", norms=()),
    *(
        row._replace(condition=lambda config, two=two: _has_two_norms(config) == two)  # type: ignore[misc]
        for two, names in NORMS.items()
        for name, residual in zip(names, ("attn", "ffn"), strict=True)
        for row in linear(f"{BLOCK}.{name}", f"{STACK_LAYER}.{residual}_residual.norm")
    ),
)
register_decoder(
    "falcon",
    "FalconForCausalLM",
    FALCON_KEYS,
    FALCON_TABLE,
    "transformer.word_embeddings",
    buffers=r"transformer\.h\.\d+\.self_attention\.rotary_emb\.inv_freq",
)
