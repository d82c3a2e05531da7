"""Nomic BERT (Nussbaum et al., 2024): BERT with rope and a gated feed-forward, without biases in its layers.

Files have the names of the authors' code, which transformers also reads and writes; a config.json may have
the keys of that code (``n_embd``) or today's.
"""

from __future__ import annotations

from polyhead.hf.config_map import ConfigField, ModelFields, constant, defaults, ignore, require
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.bert import bert_keys
from polyhead.hf.families.encoder_common import (
    BERT_SPECIAL_TOKENS,
    ENCODER_EMBEDDING,
    ENCODER_LAYER,
    encoder_architectures,
    lm_head_rules,
    tied_head_weights,
)
from polyhead.hf.families.llama import HEAD_DIM, map_rope
from polyhead.hf.family import (
    FAMILY,
    HF_ACTIVATIONS,
    HF_GATED_ACTIVATIONS,
    ModelFamily,
    head_transform_name,
    map_activation,
)
from polyhead.hf.weight_map import CONCAT, linear, weight

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


KEYS = (
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
BLOCK = "nomic_bert.encoder.layers.{n}"
TABLE = (
    *weight("nomic_bert.embeddings.word_embeddings.weight", f"{ENCODER_EMBEDDING}.token.weight"),
    *weight("nomic_bert.embeddings.token_type_embeddings.weight", f"{ENCODER_EMBEDDING}.segment.weight"),
    *linear("nomic_bert.emb_ln", f"{ENCODER_EMBEDDING}.norm"),
    *weight(
        f"{BLOCK}.attn.Wqkv.weight",
        *(f"{ENCODER_LAYER}.attn.{part}_proj.weight" for part in "qkv"),
        transform=CONCAT,
    ),
    *weight(f"{BLOCK}.attn.out_proj.weight", f"{ENCODER_LAYER}.attn.o_proj.weight"),
    *linear(f"{BLOCK}.norm1", f"{ENCODER_LAYER}.attn_residual.norm"),
    # fc12 has the activation
    *weight(f"{BLOCK}.mlp.fc11.weight", f"{ENCODER_LAYER}.ffn.up_proj.weight"),
    *weight(f"{BLOCK}.mlp.fc12.weight", f"{ENCODER_LAYER}.ffn.gate_proj.weight"),
    *weight(f"{BLOCK}.mlp.fc2.weight", f"{ENCODER_LAYER}.ffn.down_proj.weight"),
    *linear(f"{BLOCK}.norm2", f"{ENCODER_LAYER}.ffn_residual.norm"),
    *linear("nomic_bert.pooler.dense", "pooler.proj"),
    *linear("classifier", "classifier"),
    *linear("cls.predictions.transform.dense", "transform"),
    *linear("cls.predictions.transform.layer_norm", "transform_norm"),
    *lm_head_rules("cls.predictions"),
)
BUFFERS = (
    r"nomic_bert\.(embeddings\.(position|token_type)_ids|pooler\.dense\..*|encoder\.layers\.\d+\.attn"
    r"\.rotary_emb\.inv_freq)"
)
TIED = tied_head_weights("cls.predictions", "nomic_bert")
FAMILY.register("nomic_bert")(
    ModelFamily(
        encoder_architectures("NomicBert"),
        KEYS,
        TABLE,
        "nomic_bert.",
        BUFFERS,
        TIED,
        special_tokens=BERT_SPECIAL_TOKENS,
    )
)
