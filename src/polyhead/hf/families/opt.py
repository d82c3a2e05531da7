"""OPT (Zhang et al., 2022): learned positions that begin at row 2 of their table, ReLU, pre-norm or
post-norm.
"""

from __future__ import annotations

from polyhead.hf.config_map import (
    DECODER,
    constant,
    ignore,
    map_bool,
    map_embedding_width,
    map_float,
    map_int,
    map_tied_embeddings,
    require,
)
from polyhead.hf.family import (
    FAMILY,
    FINAL_NORM,
    HEAD_WEIGHT,
    STACK_LAYER,
    TOKEN_EMBEDDING,
    ModelFamily,
    map_activation,
)
from polyhead.hf.tokenizers.legacy_tokenizers import load_byte_level
from polyhead.hf.weight_map import linear, weight

# defaults of OPT-125M
KEYS = (
    DECODER,
    ignore("layerdrop", "init_std", "activation_dropout"),
    require("_remove_final_layer_norm", False),
    require("layer_norm_elementwise_affine", True),
    map_int("vocab_size", "vocab_size", 50272),
    map_int("hidden_size", "d_model", 768),
    map_embedding_width("word_embed_proj_dim"),
    map_int("num_hidden_layers", "n_layers", 12),
    map_int("num_attention_heads", "n_heads", 12),
    map_int("ffn_dim", "d_ff", 3072),
    map_int("max_position_embeddings", "max_len", 2048),
    constant(position={"name": "learned", "offset": 2}, norm={"name": "layernorm", "eps": 1e-5}),
    map_bool("do_layer_norm_before", "norm_first", True),
    map_activation("activation_function", "relu"),
    map_bool("enable_bias", "attention.bias feed_forward.bias", True),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_float("dropout", "dropout", 0.1),
    map_tied_embeddings(True),
)
BLOCK = "model.decoder.layers.{n}"
TABLE = (
    *weight("model.decoder.embed_tokens.weight", TOKEN_EMBEDDING),
    *weight("model.decoder.project_in.weight", "embedding.token_proj.weight"),
    *weight("model.decoder.embed_positions.weight", "embedding.position.weight"),
    *linear(f"{BLOCK}.self_attn_layer_norm", f"{STACK_LAYER}.attn_residual.norm"),
    *linear(f"{BLOCK}.self_attn.q_proj", f"{STACK_LAYER}.attn.q_proj"),
    *linear(f"{BLOCK}.self_attn.k_proj", f"{STACK_LAYER}.attn.k_proj"),
    *linear(f"{BLOCK}.self_attn.v_proj", f"{STACK_LAYER}.attn.v_proj"),
    *linear(f"{BLOCK}.self_attn.out_proj", f"{STACK_LAYER}.attn.o_proj"),
    *linear(f"{BLOCK}.final_layer_norm", f"{STACK_LAYER}.ffn_residual.norm"),
    *linear(f"{BLOCK}.fc1", f"{STACK_LAYER}.ffn.up_proj"),
    *linear(f"{BLOCK}.fc2", f"{STACK_LAYER}.ffn.down_proj"),
    *linear("model.decoder.final_layer_norm", FINAL_NORM),
    *weight("model.decoder.project_out.weight", "out_proj.weight"),
    *weight("lm_head.weight", HEAD_WEIGHT),
)
TIED = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
FAMILY.register("opt")(
    ModelFamily(
        {"CausalLM": "OPTForCausalLM"},
        KEYS,
        TABLE,
        "model.",
        tied_weights=TIED,
        load_legacy_tokenizer=load_byte_level,
    )
)
