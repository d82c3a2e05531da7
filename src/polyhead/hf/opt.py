"""OPT (Zhang et al., 2022): learned positions from row 2 of their table on, ReLU, norms before or after."""

from __future__ import annotations

from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, Family, activation
from polyhead.hf.keys import DECODER, fixed, flag, number, only, passed, size, tied, width
from polyhead.hf.table import both, one
from polyhead.hf.vocabularies import byte_level

# what is not given is as in OPT-125M
KEYS = (
    DECODER,
    passed("layerdrop", "init_std", "activation_dropout"),
    only("_remove_final_layer_norm", False),
    only("layer_norm_elementwise_affine", True),
    size("vocab_size", "vocab_size", 50272),
    size("hidden_size", "d_model", 768),
    width("word_embed_proj_dim"),
    size("num_hidden_layers", "n_layers", 12),
    size("num_attention_heads", "n_heads", 12),
    size("ffn_dim", "d_ff", 3072),
    size("max_position_embeddings", "max_len", 2048),
    fixed(position={"name": "learned", "offset": 2}, norm={"name": "layernorm", "eps": 1e-5}),
    flag("do_layer_norm_before", "norm_first", True),
    activation("activation_function", "relu"),
    flag("enable_bias", "attention.bias feed_forward.bias", True),
    number("attention_dropout", "attention.dropout", 0.0),
    number("dropout", "dropout", 0.1),
    tied(True),
)
BLOCK = "model.decoder.layers.{n}"
TABLE = (
    *one("model.decoder.embed_tokens.weight", EMBEDDING),
    *one("model.decoder.project_in.weight", "embedding.token_proj.weight"),
    *one("model.decoder.embed_positions.weight", "embedding.position.weight"),
    *both(f"{BLOCK}.self_attn_layer_norm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.self_attn.q_proj", f"{LAYER}.attn.q_proj"),
    *both(f"{BLOCK}.self_attn.k_proj", f"{LAYER}.attn.k_proj"),
    *both(f"{BLOCK}.self_attn.v_proj", f"{LAYER}.attn.v_proj"),
    *both(f"{BLOCK}.self_attn.out_proj", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.final_layer_norm", f"{LAYER}.ffn_residual.norm"),
    *both(f"{BLOCK}.fc1", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.fc2", f"{LAYER}.ffn.down_proj"),
    *both("model.decoder.final_layer_norm", FINAL_NORM),
    *one("model.decoder.project_out.weight", "out_proj.weight"),
    *one("lm_head.weight", HEAD),
)
TIED = {"lm_head.weight": "model.decoder.embed_tokens.weight"}
FAMILY.register("opt")(
    Family({"CausalLM": "OPTForCausalLM"}, KEYS, TABLE, "model.", tied=TIED, vocabulary=byte_level)
)
