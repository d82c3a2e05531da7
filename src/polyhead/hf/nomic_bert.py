"""Nomic BERT (Nussbaum et al., 2024): BERT with rotary positions and a gated feed-forward, without biases in its layers.

Files have the names of the first code of the family, which the reference reads and writes as well; a config.json may have
the keys of that code (``n_embd``) or those of today.
"""

from __future__ import annotations

from polyhead.hf.bert import keys
from polyhead.hf.encoders import EMBEDDING, LAYER, SPECIALS, named, scores, ties
from polyhead.hf.family import FAMILY, GATED, PLAIN, Family, activation, head_activation
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, only, passed, unsaid
from polyhead.hf.llama import HEAD_DIM, rotary
from polyhead.hf.table import FUSED, both, one

# keys of the first code -> those of today
OLDER = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
}
# what says nothing of a model that is used as it was published
UNREAD = """
    auto_map dense_seq_output embd_pdrop fused_bias_fc fused_dropout_add_ln last_layer_subset max_trained_positions
    pad_vocab_size_multiple summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    use_flash_attn use_xentropy
""".split()  # noqa: SIM905
# what that code has parts for, and the published models do without
LEFT = (
    "prenorm", "parallel_block", "parallel_block_tied_norm", "use_rms_norm", "causal", "qkv_proj_bias", "mlp_fc1_bias",
    "mlp_fc2_bias", "rotary_emb_interleaved", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx",
)  # fmt: skip
ACTIVATIONS = {name: gate for name, gate in GATED.items() if name in PLAIN}


def older(given: Given, fields: Fields) -> Fields:
    """The keys of the first code, of which those of today say the same."""
    given.passed(*OLDER)
    given.assume(**{today: given.values[key] for key, today in OLDER.items() if given.has(key)})
    return {}


def longest(given: Given, fields: Fields) -> Fields:
    """``n_positions`` is the longer of two lengths in published files."""
    return {"max_len": given.size("n_positions", fields["max_len"])}


def of_head(given: Given, fields: Fields) -> Fields:
    """The map below the scores of the vocabulary has the activation of the gates."""
    return {"head_activation": head_activation(PLAIN[given.word("hidden_act", "silu", ACTIVATIONS)])}


KEYS = (
    Key(older),
    passed(*UNREAD),
    only("activation_function", "swiglu"),
    only("rotary_emb_fraction", 1.0),
    only("scale_attn_weights", True),
    *(only(key, False) for key in LEFT),
    unsaid(vocab_size=30528, max_position_embeddings=2048, rope_theta=1000.0),
    unsaid(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    *keys("NomicBert", bare=None, feed_forward=activation("hidden_act", "silu", ACTIVATIONS)),
    Key(longest),
    HEAD_DIM,
    rotary(),
    Key(of_head),
    fixed(attention={"bias": False}, map_bias=True),
)
BLOCK = "nomic_bert.encoder.layers.{n}"
TABLE = (
    *one("nomic_bert.embeddings.word_embeddings.weight", f"{EMBEDDING}.token.weight"),
    *one("nomic_bert.embeddings.token_type_embeddings.weight", f"{EMBEDDING}.segment.weight"),
    *both("nomic_bert.emb_ln", f"{EMBEDDING}.norm"),
    *one(f"{BLOCK}.attn.Wqkv.weight", *(f"{LAYER}.attn.{part}_proj.weight" for part in "qkv"), step=FUSED),
    *one(f"{BLOCK}.attn.out_proj.weight", f"{LAYER}.attn.o_proj.weight"),
    *both(f"{BLOCK}.norm1", f"{LAYER}.attn_residual.norm"),
    # the activation is that of the second
    *one(f"{BLOCK}.mlp.fc11.weight", f"{LAYER}.ffn.up_proj.weight"),
    *one(f"{BLOCK}.mlp.fc12.weight", f"{LAYER}.ffn.gate_proj.weight"),
    *one(f"{BLOCK}.mlp.fc2.weight", f"{LAYER}.ffn.down_proj.weight"),
    *both(f"{BLOCK}.norm2", f"{LAYER}.ffn_residual.norm"),
    *both("nomic_bert.pooler.dense", "pooler.proj"),
    *both("classifier", "classifier"),
    *both("cls.predictions.transform.dense", "transform"),
    *both("cls.predictions.transform.layer_norm", "transform_norm"),
    *scores("cls.predictions"),
)
BUFFERS = r"nomic_bert\.(embeddings\.(position|token_type)_ids|pooler\.dense\..*|encoder\.layers\.\d+\.attn\.rotary_emb\.inv_freq)"
TIED = ties("cls.predictions", "nomic_bert")
FAMILY.register("nomic_bert")(
    Family(named("NomicBert"), KEYS, TABLE, "nomic_bert.", BUFFERS, TIED, specials=SPECIALS)
)
