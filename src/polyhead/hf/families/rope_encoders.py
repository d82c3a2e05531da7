"""Encoders with rotary positions: GTE, Nomic BERT and EuroBERT."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import ConfigField, ModelFields, constant, defaults, ignore, map_int, require
from polyhead.hf.config_reader import ConfigReader
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
    write_labels,
)
from polyhead.hf.families.llama import BIASES, BUFFERS, DIVISIBLE_HEADS, HEAD_DIM, TIED, llama_keys, map_rope
from polyhead.hf.families.llama import TABLE as LLAMA
from polyhead.hf.family import (
    FAMILY,
    HEAD_WEIGHT,
    HF_ACTIVATIONS,
    HF_GATED_ACTIVATIONS,
    ModelFamily,
    head_transform_name,
    map_activation,
)
from polyhead.hf.weight_map import CONCAT, linear, weight

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


def _read_max_len(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Read ``n_positions``, the longer of two lengths in published files."""
    return {"max_len": reader.get_int("n_positions", fields["max_len"])}


def _read_head_transform(reader: ConfigReader, fields: ModelFields) -> ModelFields:
    """Give the transform of the head the activation of the gates."""
    return {
        "head_transform_activation": head_transform_name(
            HF_ACTIVATIONS[reader.get_choice("hidden_act", "silu", ACTIVATIONS)]
        )
    }


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
    ConfigField(_read_max_len),
    HEAD_DIM,
    map_rope(),
    ConfigField(_read_head_transform),
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
