"""MPT (MosaicML, 2023): ALiBi, layer norms and no biases at all, q, k and v in one."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import DECODER, Fields, Key, fixed, norm, number, only, passed, size, tied
from polyhead.hf.table import FUSED, one

# keys that say how it was trained, or by which of several ways of the same numbers
UNREAD = """
    auto_map embedding_fraction emb_pdrop init_config init_device learned_pos_emb tokenizer_name verbose
""".split()  # noqa: SIM905
# what the first code has parts for, and the reference reads without building them
LEFT = {"attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False, "attn_uses_sequence_id": False,
        "alibi": True, "alibi_bias_max": 8}  # fmt: skip


def attention(given: Given, fields: Fields) -> Fields:
    """What attn_config says of attention."""
    section = given.section("attn_config")
    if section is None:
        return {}
    section.passed("attn_impl")
    for key, value in LEFT.items():
        section.only(key, value)
    if section.has("clip_qkv"):
        raise section.wrong("clip_qkv", "null, all that is built")
    found = {"dropout": section.number("attn_pdrop", 0.0)}
    if section.has("softmax_scale"):
        found["scale"] = section.number("softmax_scale")
    section.finish()
    return {"attention": found}


def attention_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``attention``. Of dropout the reference takes whole numbers alone: none."""
    scale = config.attention.options.get("scale")
    return {"attn_config": LEFT | {"attn_pdrop": 0, "softmax_scale": scale, "clip_qkv": None}}


def refused(given: Given, fields: Fields) -> Fields:
    """What is read and not built."""
    given.word("norm_type", "low_precision_layernorm", ["low_precision_layernorm", "layernorm"])
    if given.has("logit_scale"):
        raise given.wrong("logit_scale", "null, all that is built")
    return {}


# what is not given is as in the reference
KEYS = (
    DECODER,
    passed(*UNREAD),
    Key(refused),
    only("expansion_ratio", 4, said=True),
    only("no_bias", True, said=True),
    size("vocab_size", "vocab_size", 50368),
    size("d_model", "d_model", 2048),
    size("n_layers", "n_layers", 24),
    size("n_heads", "n_heads", 16),
    size("max_seq_len", "max_len", 2048),
    fixed(position="alibi", attention={"bias": False}),
    fixed(feed_forward={"name": "gelu", "tanh": False, "bias": False}),
    Key(attention, attention_said),
    norm("layer_norm_epsilon", "layernorm", 1e-5),
    fixed(norm={"bias": False}),
    number("resid_pdrop", "dropout", 0.0),
    tied(True),
)
BLOCK = "transformer.blocks.{n}"
TABLE = (
    *one("transformer.wte.weight", EMBEDDING),
    *one(f"{BLOCK}.norm_1.weight", f"{LAYER}.attn_residual.norm.weight"),
    *one(f"{BLOCK}.attn.Wqkv.weight", *(f"{LAYER}.attn.{part}_proj.weight" for part in "qkv"), step=FUSED),
    *one(f"{BLOCK}.attn.out_proj.weight", f"{LAYER}.attn.o_proj.weight"),
    *one(f"{BLOCK}.norm_2.weight", f"{LAYER}.ffn_residual.norm.weight"),
    *one(f"{BLOCK}.ffn.up_proj.weight", f"{LAYER}.ffn.up_proj.weight"),
    *one(f"{BLOCK}.ffn.down_proj.weight", f"{LAYER}.ffn.down_proj.weight"),
    *one("transformer.norm_f.weight", f"{FINAL_NORM}.weight"),
    *one("lm_head.weight", HEAD),
)
TIED = {"lm_head.weight": "transformer.wte.weight"}
FAMILY.register("mpt")(Family({"CausalLM": "MptForCausalLM"}, KEYS, TABLE, "transformer.", tied=TIED))
