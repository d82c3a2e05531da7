"""Encoders with rotary positions: GTE, Nomic BERT, EuroBERT and ModernBERT."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    ConfigField,
    ConfigReader,
    ModelFields,
    build_pattern,
    constant,
    defaults,
    ignore,
    layer_choice,
    map_bool,
    map_float,
    map_int,
    map_norm,
    map_sizes,
    parse_layer_types,
    require,
    write_windows,
)
from polyhead.hf.families.bert import BODY, FIRST_POOLING, bert_keys
from polyhead.hf.families.encoder_common import (
    BERT_SPECIAL_TOKENS,
    ENCODER_EMBEDDING,
    ENCODER_LAYER,
    encoder_architectures,
    lm_head_rules,
    map_heads,
    read_architecture,
    read_heads,
    tied_head_weights,
    write_heads,
    write_labels,
)
from polyhead.hf.families.llama import BIASES, BUFFERS, DIVISIBLE_HEADS, HEAD_DIM, TIED, llama_keys, map_rope
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.family import (
    CONCAT,
    FAMILY,
    HEAD_WEIGHT,
    HF_ACTIVATIONS,
    HF_GATED_ACTIVATIONS,
    ModelFamily,
    head_transform_name,
    linear,
    map_activation,
    weight,
)
from polyhead.nn.pooling import has_transform_bias

# GTE (Zhang et al., 2024): BERT with rotary positions and a gated feed-forward whose gates have no bias.
#
# Files have the names of the authors' code, which transformers also reads and writes; the authors' own
# files have the prefix ``new``.
KEYS = (
    defaults(vocab_size=250048, max_position_embeddings=8192, rope_theta=160_000.0),
    defaults(attention_probs_dropout_prob=0.0),
    ignore("auto_map", "classifier_dropout", "unpad_inputs", "use_memory_efficient_attention"),
    require("layer_norm_type", "layer_norm"),
    require("logn_attention_clip1", False),
    require("logn_attention_scale", False),
    require("pack_qkv", True),
    require("position_embedding_type", "rope"),
    map_heads("Gte", classifier_pooling=FIRST_POOLING),
    *BODY,
    map_int("type_vocab_size", "n_segments", 1, minimum=0),
    map_rope(),
    map_activation("hidden_act", "gelu", HF_GATED_ACTIVATIONS),
    constant(feed_forward={"bias": "down"}),
)
BLOCK = "gte.encoder.layer.{n}"
TABLE = (
    *weight("gte.embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *weight("gte.embeddings.token_type_embeddings.weight", f"{ENCODER_EMBEDDING}.segment.weight"),
    *linear("gte.embeddings.LayerNorm", f"{ENCODER_EMBEDDING}.norm"),
    *linear(
        f"{BLOCK}.attention.qkv_proj",
        *(f"{ENCODER_LAYER}.attn.{part}_proj" for part in "qkv"),
        weight=CONCAT,
        bias=CONCAT,
    ),
    *linear(f"{BLOCK}.attention.o_proj", f"{ENCODER_LAYER}.attn.o_proj"),
    *linear(f"{BLOCK}.attn_ln", f"{ENCODER_LAYER}.attn_residual.norm"),
    # the second half has the activation
    *weight(
        f"{BLOCK}.mlp.up_gate_proj.weight",
        f"{ENCODER_LAYER}.ffn.up_proj.weight",
        f"{ENCODER_LAYER}.ffn.gate_proj.weight",
        transform=CONCAT,
    ),
    *linear(f"{BLOCK}.mlp.down_proj", f"{ENCODER_LAYER}.ffn.down_proj"),
    *linear(f"{BLOCK}.mlp_ln", f"{ENCODER_LAYER}.ffn_residual.norm"),
    *linear("gte.pooler.dense", "pooler.proj"),
    *linear("classifier", "classifier"),
    *linear("lm_head.dense", "transform"),
    *linear("lm_head.norm", "transform_norm"),
    *linear("lm_head.decoder", "head"),
)
# a pooler that no head reads, and the token weights that gte-multilingual-base has in addition to its
# embeddings
GTE_BUFFERS = r"gte\.pooler\.dense\..*|classifier\.(weight|bias)"
GTE_TIED = {"lm_head.decoder.weight": "gte.embeddings.word_embeddings.weight"}
FAMILY.register("gte")(
    ModelFamily(
        encoder_architectures("Gte"), KEYS, TABLE, "gte.", GTE_BUFFERS, GTE_TIED, legacy_prefix="new."
    )
)


# Nomic BERT (Nussbaum et al., 2024): BERT with rope and a gated feed-forward, without biases in its layers.
#
# Files have the names of the authors' code, which transformers also reads and writes; a config.json may
# have the keys of that code (``n_embd``) or today's.
# keys of the authors' code -> keys of today
_OLDER_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
}
# keys without effect on a published model
_UNREAD_KEYS = """
    auto_map dense_seq_output embd_pdrop fused_bias_fc fused_dropout_add_ln last_layer_subset
    max_trained_positions     pad_vocab_size_multiple summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj     use_flash_attn use_xentropy
""".split()  # noqa: SIM905
# options of the authors' code that published models do not use
_FALSE_KEYS = (
    "prenorm", "parallel_block", "parallel_block_tied_norm", "use_rms_norm", "causal", "qkv_proj_bias",
    "mlp_fc1_bias",
    "mlp_fc2_bias", "rotary_emb_interleaved", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx",
)  # fmt: skip
ACTIVATIONS = {name: gate for name, gate in HF_GATED_ACTIVATIONS.items() if name in HF_ACTIVATIONS}


def _read_older_keys(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the keys of the authors' code as those of today."""
    reader.ignore(*_OLDER_KEYS)
    reader.set_defaults(
        **{today: reader.values[key] for key, today in _OLDER_KEYS.items() if reader.has(key)}
    )
    return {}


NOMIC_KEYS = (
    ConfigField(_read_older_keys),
    ignore(*_UNREAD_KEYS),
    require("activation_function", "swiglu"),
    require("rotary_emb_fraction", 1.0),
    require("scale_attn_weights", True),
    *(require(key, False) for key in _FALSE_KEYS),
    defaults(vocab_size=30528, max_position_embeddings=2048, rope_theta=1000.0),
    defaults(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    *bert_keys(
        "NomicBert", base_pooling=None, feed_forward=map_activation("hidden_act", "silu", ACTIVATIONS)
    ),
    # the longer of two lengths in published files
    ConfigField(lambda reader, fields: {"max_len": reader.get_int("n_positions", fields["max_len"])}),
    HEAD_DIM,
    map_rope(),
    ConfigField(
        lambda reader, fields: (
            {
                "head_transform_activation": head_transform_name(
                    HF_ACTIVATIONS[reader.get_choice("hidden_act", "silu", ACTIVATIONS)]
                )
            }
        )
    ),
    constant(attention={"bias": False}, head_transform_bias=True),
)
NOMIC_BLOCK = "nomic_bert.encoder.layers.{n}"
NOMIC_TABLE = (
    *weight("nomic_bert.embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *weight("nomic_bert.embeddings.token_type_embeddings.weight", f"{ENCODER_EMBEDDING}.segment.weight"),
    *linear("nomic_bert.emb_ln", f"{ENCODER_EMBEDDING}.norm"),
    *weight(
        f"{NOMIC_BLOCK}.attn.Wqkv.weight",
        *(f"{ENCODER_LAYER}.attn.{part}_proj.weight" for part in "qkv"),
        transform=CONCAT,
    ),
    *weight(f"{NOMIC_BLOCK}.attn.out_proj.weight", f"{ENCODER_LAYER}.attn.o_proj.weight"),
    *linear(f"{NOMIC_BLOCK}.norm1", f"{ENCODER_LAYER}.attn_residual.norm"),
    # fc12 has the activation
    *weight(f"{NOMIC_BLOCK}.mlp.fc11.weight", f"{ENCODER_LAYER}.ffn.up_proj.weight"),
    *weight(f"{NOMIC_BLOCK}.mlp.fc12.weight", f"{ENCODER_LAYER}.ffn.gate_proj.weight"),
    *weight(f"{NOMIC_BLOCK}.mlp.fc2.weight", f"{ENCODER_LAYER}.ffn.down_proj.weight"),
    *linear(f"{NOMIC_BLOCK}.norm2", f"{ENCODER_LAYER}.ffn_residual.norm"),
    *linear("nomic_bert.pooler.dense", "pooler.proj"),
    *linear("classifier", "classifier"),
    *linear("cls.predictions.transform.dense", "transform"),
    *linear("cls.predictions.transform.layer_norm", "transform_norm"),
    *lm_head_rules("cls.predictions"),
)
NOMIC_BUFFERS = (
    r"nomic_bert\.(embeddings\.(position|token_type)_ids|pooler\.dense\..*|encoder\.layers\.\d+\.attn"
    r"\.rotary_emb\.inv_freq)"
)
NOMIC_TIED = tied_head_weights("cls.predictions", "nomic_bert")
FAMILY.register("nomic_bert")(
    ModelFamily(
        encoder_architectures("NomicBert"),
        NOMIC_KEYS,
        NOMIC_TABLE,
        "nomic_bert.",
        NOMIC_BUFFERS,
        NOMIC_TIED,
        special_tokens=BERT_SPECIAL_TOKENS,
    )
)


# EuroBERT (Boizard et al., 2025): Llama layers with bidirectional attention, no transform in the head.
# poolings by their Hugging Face name
POOLINGS: dict[str, dict[str, Any]] = {
    "late": {"name": "mean", "activation": "gelu", "map_first": True},
    "mean": {"name": "mean", "activation": "gelu"},
    "bos": {"name": "first", "activation": "gelu"},
}


def _read_heads(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the heads. The bias of a vocabulary head follows that of the feed-forward."""
    model = read_architecture(reader, "EuroBert")
    pooling = POOLINGS[reader.get_choice("classifier_pooling", "late", POOLINGS)]
    return {
        "kind": "encoder",
        "head_transform_bias": None if model == "SentenceEncoder" else True,
        **read_heads(reader, model, classifier_pooling=pooling),
        **({"lm_head_bias": reader.get_bool("mlp_bias", False)} if model == "MaskedLM" else {}),
    }


def _write_heads(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_heads``."""
    names = {(choice["name"], choice.get("map_first", False)): name for name, choice in POOLINGS.items()}
    pooling = config.pooling
    choice = (pooling.name, pooling.options.get("map_first", False)) if pooling else ("first", False)
    return write_labels(config) | {"classifier_pooling": names.get(choice, "late")}


EUROBERT_KEYS = (
    defaults(hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=12),
    defaults(vocab_size=128256, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=False),
    ignore("auto_map", "mask_token_id", "hidden_dropout"),
    # of the authors' code, tokens instead of ids
    ignore("bos_token", "eos_token", "mask_token", "pad_token"),
    require("clf_pooling", "late"),
    *llama_keys(),
    DIVISIBLE_HEADS,
    *BIASES,
    constant(head_transform_activation="none"),
    ConfigField(_read_heads, _write_heads),
)
EUROBERT_TABLE = (
    *(row._replace(param_names=tuple(f"encoder.{name}" for name in row.param_names)) for row in LLAMA
        if row.param_names != (HEAD_WEIGHT,)),
    *linear("lm_head", "head"),
    *linear("dense", "pooler.proj"),
    *linear("classifier", "classifier"),
)  # fmt: skip
FAMILY.register("eurobert")(
    ModelFamily(encoder_architectures("EuroBert"), EUROBERT_KEYS, EUROBERT_TABLE, "model.", BUFFERS, TIED)
)


# ModernBERT (Warner et al., 2024): pre-norm, rope, gated feed-forward, mostly windows, few biases.
def _read_modernbert_heads(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the heads."""
    model, bias = read_architecture(reader, "ModernBert"), fields["feed_forward"]["bias"]
    pool = {"cls": "first", "mean": "mean"}[reader.get_choice("classifier_pooling", "cls", ["cls", "mean"])]
    reader.get_choice("classifier_activation", "gelu", ["gelu"])
    head_transform_bias = reader.get_bool("classifier_bias", False)
    lm_head_bias = reader.get_bool("decoder_bias", True)
    return {
        "head_transform_bias": None if head_transform_bias == bias else head_transform_bias,
        **read_heads(reader, model, classifier_pooling={"name": pool, "activation": "gelu", "norm": True}),
        **({"lm_head_bias": lm_head_bias} if model == "MaskedLM" else {}),
    }


def _write_modernbert_heads(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_modernbert_heads``."""
    return write_heads(config) | {
        "classifier_activation": "gelu",
        "classifier_bias": has_transform_bias(config),
        "classifier_pooling": "mean" if config.pooling and config.pooling.name == "mean" else "cls",
        "decoder_bias": config.lm_head_bias,
    }


def _read_layer_types(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read the layer types from layer_types; in older files all but every third layer have a window."""
    period = reader.get_int("global_attn_every_n_layers", 3)
    kinds = parse_layer_types(reader, fields["n_layers"], lambda layer: layer % period > 0)
    size = reader.get_int("local_attention", 128) // 2 + 1  # to one side, including the token itself
    rope = {kind: {"name": "rope", "theta": theta} for kind, theta in _read_thetas(reader).items()}
    window = {"attention": fields["attention"] | {"window": size}, "position": rope[SLIDING_ATTENTION]}
    return {
        "position": rope[FULL_ATTENTION],
        "layer_pattern": build_pattern(kinds, {FULL_ATTENTION: {}, SLIDING_ATTENTION: window}),
    }


def _read_thetas(reader: ConfigReader) -> dict[str, float]:
    """Return the rope theta of each layer type, from rope_parameters or two keys of older files."""
    thetas = {
        FULL_ATTENTION: reader.get_float("global_rope_theta", 160_000.0),
        SLIDING_ATTENTION: reader.get_float("local_rope_theta", 10_000.0),
    }
    if reader.is_null("local_rope_theta"):
        thetas[SLIDING_ATTENTION] = thetas[FULL_ATTENTION]
    parameters = reader.get_section("rope_parameters")
    if parameters is None:
        return thetas
    for kind in thetas:
        if (section := parameters.get_section(kind)) is not None:
            section.get_choice("rope_type", "default", ["default"])
            thetas[kind] = section.get_float("rope_theta", thetas[kind])
            section.reject_unknown()
    parameters.reject_unknown()
    return thetas


def _write_layer_types(config: ModelConfig) -> dict[str, Any]:
    """Inverse of ``_read_layer_types``, with the keys of older readers as well."""
    windows = write_windows(config)
    kinds = windows["layer_types"]
    theta = {FULL_ATTENTION: 160_000.0, SLIDING_ATTENTION: 10_000.0} | {
        kind: layer_choice(config, "position", i).options.get("theta", 10_000.0)
        for i, kind in enumerate(kinds)
    }
    period = next(
        (
            n
            for n in range(1, len(kinds) + 1)
            if kinds == [SLIDING_ATTENTION if i % n else FULL_ATTENTION for i in range(len(kinds))]
        ),
        None,
    )
    return {
        "local_attention": max(1, 2 * ((windows["sliding_window"] or 65) - 1)),
        "layer_types": kinds,
        **({} if period is None else {"global_attn_every_n_layers": period}),
        "global_rope_theta": theta[FULL_ATTENTION],
        "local_rope_theta": theta[SLIDING_ATTENTION],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta[kind]} for kind in theta},
    }


MODERNBERT_KEYS = (
    ignore("initializer_cutoff_factor", "layer_norm_eps", "deterministic_flash_attn", "reference_compile"),
    ignore("repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index"),
    ignore("position_embedding_type", "classifier_dropout"),
    ignore("mlp_dropout", field_paths="dropout"),
    constant(kind="encoder", attention="softmax", norm_first=True, init="normal"),
    constant(embedding_norm="first", scale_embedding=False),
    *map_sizes(vocab_size=50368, d_model=768, n_layers=22, n_heads=12, d_ff=1152, max_len=8192),
    map_activation("hidden_activation", "gelu", HF_GATED_ACTIVATIONS),
    map_bool("mlp_bias", "feed_forward.bias", False),
    map_norm("norm_eps", "layernorm", 1e-5),
    map_bool("norm_bias", "norm.bias", False),
    map_bool("attention_bias", "attention.bias", False),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_float("embedding_dropout", "dropout", 0.0),
    ConfigField(_read_modernbert_heads, _write_modernbert_heads),
    ConfigField(_read_layer_types, _write_layer_types),
)
MODERNBERT_BLOCK = "model.layers.{n}"
MODERNBERT_TABLE = (
    *weight("model.embeddings.tok_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *linear("model.embeddings.norm", f"{ENCODER_EMBEDDING}.norm"),
    *linear(f"{MODERNBERT_BLOCK}.attn_norm", f"{ENCODER_LAYER}.attn_residual.norm"),
    *linear(
        f"{MODERNBERT_BLOCK}.attn.Wqkv",
        *(f"{ENCODER_LAYER}.attn.{part}_proj" for part in "qkv"),
        weight=CONCAT,
        bias=CONCAT,
    ),
    *linear(f"{MODERNBERT_BLOCK}.attn.Wo", f"{ENCODER_LAYER}.attn.o_proj"),
    *linear(f"{MODERNBERT_BLOCK}.mlp_norm", f"{ENCODER_LAYER}.ffn_residual.norm"),
    # the first half has the activation
    *linear(
        f"{MODERNBERT_BLOCK}.mlp.Wi",
        f"{ENCODER_LAYER}.ffn.gate_proj",
        f"{ENCODER_LAYER}.ffn.up_proj",
        weight=CONCAT,
        bias=CONCAT,
    ),
    *linear(f"{MODERNBERT_BLOCK}.mlp.Wo", f"{ENCODER_LAYER}.ffn.down_proj"),
    *linear("model.final_norm", "encoder.stack.final_norm"),
    *linear("head.dense", "transform"),
    *linear("head.norm", "transform_norm"),
    *linear("head.dense", "pooler.proj"),
    *linear("head.norm", "pooler.norm"),
    *linear("decoder", "head"),
    *linear("classifier", "classifier"),
)
MODERNBERT_TIED = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}
FAMILY.register("modernbert")(
    ModelFamily(
        encoder_architectures("ModernBert"),
        MODERNBERT_KEYS,
        MODERNBERT_TABLE,
        "model.",
        tied_weights=MODERNBERT_TIED,
    )
)
