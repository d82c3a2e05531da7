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
    map_sizes,
    map_tied_embeddings,
    require,
)
from polyhead.hf.family import (
    decoder_rules,
    map_activation,
    register_decoder,
)
from polyhead.hf.tokenizers.legacy_tokenizers import load_byte_level
from polyhead.hf.weight_map import weight

# defaults of OPT-125M
KEYS = (
    DECODER,
    ignore("layerdrop", "init_std", "activation_dropout"),
    require("_remove_final_layer_norm", False),
    require("layer_norm_elementwise_affine", True),
    *map_sizes(vocab_size=50272, d_model=768),
    map_embedding_width("word_embed_proj_dim"),
    *map_sizes({"d_ff": "ffn_dim"}, n_layers=12, n_heads=12, d_ff=3072, max_len=2048),
    constant(position={"name": "learned", "offset": 2}, norm={"name": "layernorm", "eps": 1e-5}),
    map_bool("do_layer_norm_before", "norm_first", True),
    map_activation("activation_function", "relu"),
    map_bool("enable_bias", "attention.bias feed_forward.bias", True),
    map_float("attention_dropout", "attention.dropout", 0.0),
    map_float("dropout", "dropout", 0.1),
    map_tied_embeddings(True),
)
TABLE = (
    *weight("model.decoder.project_in.weight", "embedding.token_proj.weight"),
    *weight("model.decoder.embed_positions.weight", "embedding.position.weight"),
    *decoder_rules(
        "model.decoder.layers.{n}",
        embedding="model.decoder.embed_tokens",
        norms=("self_attn_layer_norm", "final_layer_norm"),
        qkv="self_attn.{x}_proj",
        output="self_attn.out_proj",
        feed_forward=("fc1", "fc2"),
        final_norm="model.decoder.final_layer_norm",
    ),
    *weight("model.decoder.project_out.weight", "out_proj.weight"),
)
register_decoder(
    "opt", "OPTForCausalLM", KEYS, TABLE, "model.decoder.embed_tokens", load_legacy_tokenizer=load_byte_level
)
