"""GPT-2 (Radford et al., 2019): learned positions, pre-norm, matrices stored as (in, out), q, k and v in one
matrix.
"""

from __future__ import annotations

from polyhead.hf.config_map import (
    DECODER,
    ConfigField,
    constant,
    get_field,
    ignore,
    map_float,
    map_int,
    map_norm,
    map_tied_embeddings,
    require,
)
from polyhead.hf.family import (
    FAMILY,
    FINAL_NORM,
    HEAD_WEIGHT,
    QKV_PROJ,
    STACK_LAYER,
    TOKEN_EMBEDDING,
    ModelFamily,
    map_activation,
)
from polyhead.hf.tokenizers.legacy_tokenizers import load_byte_level
from polyhead.hf.weight_map import CONCAT, CONCAT_TRANSPOSE, TRANSPOSE, linear, weight

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
    map_int("vocab_size", "vocab_size", 50257),
    map_int("n_embd", "d_model", 768),
    map_int("n_layer", "n_layers", 12),
    map_int("n_head", "n_heads", 12),
    map_int("n_inner", "d_ff", optional=True),
    map_int("n_positions", "max_len", 1024),
    constant(position="learned"),
    map_activation("activation_function", "gelu_new"),
    map_norm("layer_norm_epsilon", "layernorm", 1e-5),
    SCALE_WEIGHTS,
    map_float("attn_pdrop", "attention.dropout", 0.1),
    map_float("resid_pdrop", "dropout", 0.1),
    ignore("embd_pdrop", field_paths="dropout"),
    map_tied_embeddings(True),
)
BLOCK = "transformer.h.{n}"
TABLE = (
    *weight("transformer.wte.weight", TOKEN_EMBEDDING),
    *weight("transformer.wpe.weight", "embedding.position.weight"),
    *linear(f"{BLOCK}.ln_1", f"{STACK_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.attn.c_attn", *QKV_PROJ, weight=CONCAT_TRANSPOSE, bias=CONCAT),
    *linear(f"{BLOCK}.attn.c_proj", f"{STACK_LAYER}.attn.o_proj", weight=TRANSPOSE),
    *linear(f"{BLOCK}.ln_2", f"{STACK_LAYER}.ffn_residual.norm"),
    *linear(f"{BLOCK}.mlp.c_fc", f"{STACK_LAYER}.ffn.up_proj", weight=TRANSPOSE),
    *linear(f"{BLOCK}.mlp.c_proj", f"{STACK_LAYER}.ffn.down_proj", weight=TRANSPOSE),
    *linear("transformer.ln_f", FINAL_NORM),
    *weight("lm_head.weight", HEAD_WEIGHT),
)
GPT2_FAMILY = FAMILY.register("gpt2")(
    ModelFamily(
        {"CausalLM": "GPT2LMHeadModel"},
        KEYS,
        TABLE,
        "transformer.",
        r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",
        {"lm_head.weight": "transformer.wte.weight"},
        load_legacy_tokenizer=load_byte_level,
    )
)
