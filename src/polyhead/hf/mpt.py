"""MPT (MosaicML, 2023): ALiBi, layer norms and no biases at all, q, k and v in one."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, Family
from polyhead.hf.given import Given
from polyhead.hf.table import FUSED, one

# keys that say how it was trained, or by which of several ways of the same numbers
UNREAD = """
    auto_map embedding_fraction emb_pdrop init_config init_device learned_pos_emb tokenizer_name verbose
""".split()  # noqa: SIM905
# what the first code has parts for, and the reference reads without building them
LEFT = {"attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False, "attn_uses_sequence_id": False,
        "alibi": True, "alibi_bias_max": 8}  # fmt: skip


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. What is not given is as in the reference."""
    given.passed(*UNREAD)
    given.only("expansion_ratio", 4)
    given.only("no_bias", True)
    given.word("norm_type", "low_precision_layernorm", ["low_precision_layernorm", "layernorm"])
    if given.has("logit_scale"):
        raise given.wrong("logit_scale", "null, all that is built")
    d_model = given.size("d_model", 2048)
    return {
        "kind": "decoder",
        "vocab_size": given.size("vocab_size", 50368),
        "d_model": d_model,
        "n_layers": given.size("n_layers", 24),
        "n_heads": given.size("n_heads", 16),
        "d_ff": 4 * d_model,
        "max_len": given.size("max_seq_len", 2048),
        "attention": attention(given.section("attn_config")),
        "position": "alibi",
        "norm": {"name": "layernorm", "eps": given.number("layer_norm_epsilon", 1e-5), "bias": False},
        "norm_first": True,
        "feed_forward": {"name": "gelu", "tanh": False, "bias": False},
        "dropout": given.number("resid_pdrop", 0.0),
        "tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else "none",
        "scale_embedding": False,
        "init": "normal",
    }


def attention(given: Given | None) -> dict[str, Any]:
    """What attn_config says of attention."""
    found: dict[str, Any] = {"name": "softmax", "bias": False}
    if given is None:
        return found
    given.passed("attn_impl")
    for key, value in LEFT.items():
        given.only(key, value)
    if given.has("clip_qkv"):
        raise given.wrong("clip_qkv", "null, all that is built")
    found["dropout"] = given.number("attn_pdrop", 0.0)
    if given.has("softmax_scale"):
        found["scale"] = given.number("softmax_scale")
    given.finish()
    return found


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json. Of dropout within attention the reference takes whole numbers alone: none."""
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "n_layers": config.n_layers,
        "n_heads": config.n_heads,
        "expansion_ratio": 4,
        "max_seq_len": config.max_len,
        "attn_config": LEFT
        | {"attn_pdrop": 0, "softmax_scale": config.attention.options.get("scale"), "clip_qkv": None},
        "layer_norm_epsilon": config.norm.options.get("eps", 1e-5),
        "no_bias": True,
        "resid_pdrop": config.dropout,
        "tie_word_embeddings": config.tie_embeddings != "none",
    }


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
MPT = FAMILY.register("mpt")(
    Family({"CausalLM": "MptForCausalLM"}, read, write, TABLE, "transformer.", tied=TIED)
)
