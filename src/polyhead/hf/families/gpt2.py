"""GPT-2, its successors GPTBigCode, GPT-J and GPT-Neo, and OPT and MPT."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import (
    DECODER,
    MAX_LAYERS,
    PARALLEL_BLOCK,
    ConfigField,
    ConfigReader,
    ModelFields,
    constant,
    get_field,
    ignore,
    layer_choice,
    map_bool,
    map_embedding_width,
    map_float,
    map_int,
    map_norm,
    map_sizes,
    map_tied_embeddings,
    require,
    shortest_period,
)
from polyhead.hf.family import (
    CONCAT,
    CONCAT_TRANSPOSE,
    IDENTITY,
    QKV_PROJ,
    TRANSPOSE,
    decoder_rules,
    map_activation,
    per_head_qkv,
    register_decoder,
    weight,
)
from polyhead.hf.tokenizers.legacy_tokenizers import load_byte_level

# GPT-2 (Radford et al., 2019): learned positions, pre-norm, matrices stored as (in, out), q, k and v in one
# matrix.
SIZES = {
    "d_model": "n_embd",
    "n_layers": "n_layer",
    "n_heads": "n_head",
    "d_ff": "n_inner",
    "max_len": "n_positions",
}
SUMMARY = tuple(
    f"summary_{key}" for key in ("type", "use_proj", "activation", "first_dropout", "proj_to_labels")
)
SCALE_WEIGHTS = ConfigField(
    lambda reader, fields: {
        "attention": {"scale": None if reader.get_bool("scale_attn_weights", True) else 1.0}
    },
    lambda config: {"scale_attn_weights": get_field(config, "attention.scale") != 1.0},
)
# defaults of GPT-2 small
KEYS = (
    DECODER,
    ignore("n_ctx", "reorder_and_upcast_attn", *SUMMARY),
    require("scale_attn_by_inverse_layer_idx", False),
    require("add_cross_attention", False),
    *map_sizes(SIZES, vocab_size=50257, d_model=768, n_layers=12, n_heads=12, d_ff=None, max_len=1024),
    constant(position="learned"),
    map_activation("activation_function", "gelu_new"),
    map_norm("layer_norm_epsilon", "layernorm", 1e-5),
    SCALE_WEIGHTS,
    map_float("attn_pdrop", "attention.dropout", 0.1),
    map_float("resid_pdrop", "dropout", 0.1),
    ignore("embd_pdrop", field_paths="dropout"),
    map_tied_embeddings(True),
)
TABLE = (
    *weight("transformer.wpe.weight", "embedding.position.weight"),
    *decoder_rules(
        "transformer.h.{n}",
        embedding="transformer.wte",
        norms=("ln_1", "ln_2"),
        qkv="attn.c_attn",
        output="attn.c_proj",
        feed_forward=("mlp.c_fc", "mlp.c_proj"),
        final_norm="transformer.ln_f",
        transform=TRANSPOSE,
        qkv_weight=CONCAT_TRANSPOSE,
        qkv_bias=CONCAT,
    ),
)
GPT2_FAMILY = register_decoder(
    "gpt2",
    "GPT2LMHeadModel",
    KEYS,
    TABLE,
    "transformer.wte",
    buffers=r"transformer\.h\.\d+\.(attn|crossattention)\.(bias|masked_bias)",
    load_legacy_tokenizer=load_byte_level,
)


# GPTBigCode (Li et al., 2023, StarCoder): GPT-2 with multi-query attention, matrices stored as (out, in).
BIGCODE_KEYS = (
    *KEYS,
    ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "num_key_value_heads"),
    ignore(
        "inference_runner",
        "max_batch_size",
        "pad_key_length",
        "pre_allocate_kv_cache",
        "validate_runner_input",
    ),
    ConfigField(
        lambda reader, fields: {
            "n_kv_heads": 1 if reader.get_bool("multi_query", True) else fields["n_heads"]
        },
        lambda config: {"multi_query": config.kv_heads == 1},
    ),
)
BIGCODE_TABLE = tuple(
    row._replace(transform=per_head_qkv if len(row.param_names) == len(QKV_PROJ) else IDENTITY)
    for row in TABLE
)
register_decoder(
    "gpt_bigcode",
    "GPTBigCodeForCausalLM",
    BIGCODE_KEYS,
    BIGCODE_TABLE,
    "transformer.wte",
    buffers=GPT2_FAMILY.buffer_pattern,
)


# GPT-J (Wang & Komatsuzaki, 2021): parallel sub-layers after one norm, interleaved rope on part of the
# features.
def _read_rotary_dim(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read rotary_dim as a fraction that rounds back to the same number of features."""
    if reader.is_null("rotary_dim"):
        raise reader.value_error("rotary_dim", "the number of rotary features per head")
    width, head_dim = reader.get_int("rotary_dim", 64), fields["d_model"] // fields["n_heads"]
    fraction = width / max(1, head_dim)
    is_exact = int(head_dim * fraction) == width
    return {"position": {"fraction": fraction if is_exact else math.nextafter(fraction, math.inf)}}


def _write_rotary_dim(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_rotary_dim``."""
    assert config.head_dim is not None
    return {"rotary_dim": int(config.head_dim * config.position.options.get("fraction", 1.0))}


# defaults of GPT-J-6B
GPTJ_KEYS = (
    DECODER,
    ignore("n_ctx", "scale_attn_weights", *SUMMARY),
    require("rotary", True),
    *map_sizes(SIZES, vocab_size=50400, d_model=4096, n_layers=28, n_heads=16, d_ff=None, max_len=2048),
    constant(block=PARALLEL_BLOCK, attention={"bias": False}, lm_head_bias=True),
    constant(position={"name": "rope", "layout": "interleaved"}),
    ConfigField(_read_rotary_dim, _write_rotary_dim),
    map_activation("activation_function", "gelu_new"),
    map_norm("layer_norm_epsilon", "layernorm", 1e-5),
    map_float("attn_pdrop", "attention.dropout", 0.0),
    map_float("resid_pdrop", "dropout", 0.0),
    ignore("embd_pdrop", field_paths="dropout"),
    map_tied_embeddings(False),
)
GPTJ_TABLE = (
    *decoder_rules(
        "transformer.h.{n}",
        embedding="transformer.wte",
        norms=("ln_1",),
        qkv="attn.{x}_proj",
        output="attn.out_proj",
        feed_forward=("mlp.fc_in", "mlp.fc_out"),
        final_norm="transformer.ln_f",
    ),
    *weight("lm_head.bias", "head.bias"),
)
register_decoder(
    "gptj",
    "GPTJForCausalLM",
    GPTJ_KEYS,
    GPTJ_TABLE,
    "transformer.wte",
    buffers=r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",
    load_legacy_tokenizer=load_byte_level,
)


# GPT-Neo (Black et al., 2021): GPT-2 with a window in every second layer, unscaled scores, few biases.
LOCAL, GLOBAL = "local", "global"


def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read which layers have full attention and which a window."""
    window = {"attention": fields["attention"] | {"window": reader.get_int("window_size", 256)}}
    overrides = shortest_period(
        [window if kind == LOCAL else {} for kind in _read_attention_types(reader, fields["n_layers"])]
    )
    return {"layer_pattern": overrides if any(overrides) else []}


def _read_attention_types(reader: ConfigReader, n_layers: int) -> list[str]:
    """Return the attention type of each layer, from attention_layers.

    Without it, from attention_types: pairs of a list of types and how often it repeats. transformers has the
    same precedence.
    """
    reader.ignore("attention_types")
    if layers := reader.get_strings("attention_layers"):
        if len(layers) != n_layers or not {*layers} <= {LOCAL, GLOBAL}:
            raise reader.value_error("attention_layers", f"{LOCAL} or {GLOBAL} for each of {n_layers} layers")
        return layers
    pairs = reader.values.get("attention_types", [[[GLOBAL, LOCAL], 12]])
    try:
        words = (word for kinds, times in pairs if kinds for _ in range(times) for word in kinds)
        layers = list(islice(words, min(n_layers, MAX_LAYERS) + 1))
    except (TypeError, ValueError):
        layers = []
    if len(layers) != n_layers or any(word not in (LOCAL, GLOBAL) for word in layers):
        raise reader.value_error("attention_types", f"{LOCAL} or {GLOBAL} for each of {n_layers} layers")
    return layers


def _write_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_layer_types``."""
    sizes = [layer_choice(config, "attention", i).options.get("window") for i in range(config.n_layers)]
    layers = [GLOBAL if size is None else LOCAL for size in sizes]
    return {
        "attention_types": [[layers, 1]],
        "attention_layers": layers,
        "window_size": next((size for size in sizes if size is not None), 256),
    }


# defaults of GPT-Neo 1.3B
NEO_KEYS = (
    DECODER,
    ignore("classifier_dropout", *SUMMARY),
    *map_sizes(
        {"n_layers": "num_layers", "n_heads": "num_heads"},
        vocab_size=50257,
        d_model=2048,
        n_layers=24,
        n_heads=16,
        d_ff=None,
        max_len=2048,
    ),
    constant(position="learned", attention={"bias": "o", "scale": 1.0}),
    map_activation("activation_function", "gelu_new"),
    map_norm("layer_norm_epsilon", "layernorm", 1e-5),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_float("resid_dropout", "dropout", 0.0),
    ignore("embed_dropout", field_paths="dropout"),
    map_tied_embeddings(True),
    ConfigField(_read_layer_types, _write_layer_types),
)
NEO_TABLE = (
    *weight("transformer.wpe.weight", "embedding.position.weight"),
    *decoder_rules(
        "transformer.h.{n}",
        embedding="transformer.wte",
        norms=("ln_1", "ln_2"),
        qkv="attn.attention.{x}_proj",
        output="attn.attention.out_proj",
        feed_forward=("mlp.c_fc", "mlp.c_proj"),
        final_norm="transformer.ln_f",
    ),
)
register_decoder(
    "gpt_neo",
    "GPTNeoForCausalLM",
    NEO_KEYS,
    NEO_TABLE,
    "transformer.wte",
    buffers=r"transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)",
    load_legacy_tokenizer=load_byte_level,
)


# OPT (Zhang et al., 2022): learned positions that begin at row 2 of their table, ReLU, pre-norm or
# post-norm.
# defaults of OPT-125M
OPT_KEYS = (
    DECODER,
    ignore("layerdrop", "init_std", "activation_dropout"),
    require("_remove_final_layer_norm", False),
    require("layer_norm_elementwise_affine", True),
    *map_sizes(vocab_size=50272, d_model=768),
    map_embedding_width("word_embed_proj_dim"),
    *map_sizes({"d_ff": "ffn_dim"}, n_layers=12, n_heads=12, d_ff=3072, max_len=2048),
    constant(position={"name": "learned", "offset": 2}, norm={"name": "layernorm", "eps": 1e-5}),
    map_bool("do_layer_norm_before", "norm_first", True),
    map_activation("activation_function", "relu"),
    map_bool("enable_bias", "attention.bias feed_forward.bias", True),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_float("dropout", "dropout", 0.1),
    map_tied_embeddings(True),
)
OPT_TABLE = (
    *weight("model.decoder.project_in.weight", "embedding.token_proj.weight"),
    *weight("model.decoder.embed_positions.weight", "embedding.position.weight"),
    *decoder_rules(
        "model.decoder.layers.{n}",
        embedding="model.decoder.embed_tokens",
        norms=("self_attn_layer_norm", "final_layer_norm"),
        qkv="self_attn.{x}_proj",
        output="self_attn.out_proj",
        feed_forward=("fc1", "fc2"),
        final_norm="model.decoder.final_layer_norm",
    ),
    *weight("model.decoder.project_out.weight", "out_proj.weight"),
)
register_decoder(
    "opt",
    "OPTForCausalLM",
    OPT_KEYS,
    OPT_TABLE,
    "model.decoder.embed_tokens",
    load_legacy_tokenizer=load_byte_level,
)


# MPT (MosaicML, 2023): ALiBi, layer norms, no biases, q, k and v in one matrix.
# keys of training, or of equivalent implementations
_UNREAD_KEYS = """
    auto_map embedding_fraction emb_pdrop init_config init_device learned_pos_emb tokenizer_name verbose
""".split()  # noqa: SIM905
# options of the authors' code that transformers reads and does not implement
_REQUIRED_VALUES = {"attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False,
    "attn_uses_sequence_id": False,
        "alibi": True, "alibi_bias_max": 8}  # fmt: skip


def _read_attention(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read attn_config."""
    section = reader.get_section("attn_config")
    if section is None:
        return {}
    section.ignore("attn_impl")
    for key, value in _REQUIRED_VALUES.items():
        section.require(key, value)
    if section.has("clip_qkv"):
        raise section.value_error("clip_qkv", "null, the only supported value")
    options = {"dropout": section.get_float("attn_pdrop", 0.0)}
    if section.has("softmax_scale"):
        options["scale"] = section.get_float("softmax_scale")
    section.reject_unknown()
    return {"attention": options}


def _write_attention(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_attention``. transformers accepts only an integer dropout, so it is 0."""
    scale = config.attention.options.get("scale")
    return {"attn_config": _REQUIRED_VALUES | {"attn_pdrop": 0, "softmax_scale": scale, "clip_qkv": None}}


def _check_unsupported(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Reject values that are not supported."""
    reader.get_choice("norm_type", "low_precision_layernorm", ["low_precision_layernorm", "layernorm"])
    if reader.has("logit_scale"):
        raise reader.value_error("logit_scale", "null, the only supported value")
    return {}


# defaults of transformers
MPT_KEYS = (
    DECODER,
    ignore(*_UNREAD_KEYS),
    ConfigField(_check_unsupported),
    require("expansion_ratio", 4, is_written=True),
    require("no_bias", True, is_written=True),
    map_int("vocab_size", "vocab_size", 50368),
    map_int("d_model", "d_model", 2048),
    map_int("n_layers", "n_layers", 24),
    map_int("n_heads", "n_heads", 16),
    map_int("max_seq_len", "max_len", 2048),
    constant(position="alibi", attention={"bias": False}),
    constant(feed_forward={"name": "gelu", "tanh": False, "bias": False}),
    ConfigField(_read_attention, _write_attention),
    map_norm("layer_norm_epsilon", "layernorm", 1e-5),
    constant(norm={"bias": False}),
    map_float("resid_pdrop", "dropout", 0.0),
    map_tied_embeddings(True),
)
MPT_TABLE = decoder_rules(
    "transformer.blocks.{n}",
    embedding="transformer.wte",
    norms=("norm_1", "norm_2"),
    qkv="attn.Wqkv",
    output="attn.out_proj",
    feed_forward=("ffn.up_proj", "ffn.down_proj"),
    final_norm="transformer.norm_f",
    qkv_weight=CONCAT,
    qkv_bias=CONCAT,
)
register_decoder("mpt", "MptForCausalLM", MPT_KEYS, MPT_TABLE, "transformer.wte")
