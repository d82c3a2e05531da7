"""GPT-2 (Radford et al., 2019): learned positions, pre-norm, matrices stored as (in, out), q, k and v in one."""

from __future__ import annotations

from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, QKV, Family, activation
from polyhead.hf.keys import DECODER, Key, fixed, found, norm, number, only, passed, size, tied
from polyhead.hf.table import FUSED, FUSED_TRANSPOSED, TRANSPOSED, both, one
from polyhead.hf.vocabularies import byte_level

SUMMARY = tuple(
    f"summary_{key}" for key in ("type", "use_proj", "activation", "first_dropout", "proj_to_labels")
)
SCALED = Key(
    lambda given, fields: {"attention": {"scale": None if given.flag("scale_attn_weights", True) else 1.0}},
    lambda config: {"scale_attn_weights": found(config, "attention.scale") != 1.0},
)
# what is not given is as in the smallest GPT-2
KEYS = (
    DECODER,
    passed("n_ctx", "reorder_and_upcast_attn", *SUMMARY),
    only("scale_attn_by_inverse_layer_idx", False),
    only("add_cross_attention", False),
    size("vocab_size", "vocab_size", 50257),
    size("n_embd", "d_model", 768),
    size("n_layer", "n_layers", 12),
    size("n_head", "n_heads", 12),
    size("n_inner", "d_ff", optional=True),
    size("n_positions", "max_len", 1024),
    fixed(position="learned"),
    activation("activation_function", "gelu_new"),
    norm("layer_norm_epsilon", "layernorm", 1e-5),
    SCALED,
    number("attn_pdrop", "attention.dropout", 0.1),
    number("resid_pdrop", "dropout", 0.1),
    passed("embd_pdrop", places="dropout"),
    tied(True),
)
BLOCK = "transformer.h.{n}"
TABLE = (
    *one("transformer.wte.weight", EMBEDDING),
    *one("transformer.wpe.weight", "embedding.position.weight"),
    *both(f"{BLOCK}.ln_1", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.attn.c_attn", *QKV, weight=FUSED_TRANSPOSED, bias=FUSED),
    *both(f"{BLOCK}.attn.c_proj", f"{LAYER}.attn.o_proj", weight=TRANSPOSED),
    *both(f"{BLOCK}.ln_2", f"{LAYER}.ffn_residual.norm"),
    *both(f"{BLOCK}.mlp.c_fc", f"{LAYER}.ffn.up_proj", weight=TRANSPOSED),
    *both(f"{BLOCK}.mlp.c_proj", f"{LAYER}.ffn.down_proj", weight=TRANSPOSED),
    *both("transformer.ln_f", FINAL_NORM),
    *one("lm_head.weight", HEAD),
)
GPT2 = FAMILY.register("gpt2")(
    Family(
        {"CausalLM": "GPT2LMHeadModel"},
        KEYS,
        TABLE,
        "transformer.",
        r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",
        {"lm_head.weight": "transformer.wte.weight"},
        vocabulary=byte_level,
    )
)
