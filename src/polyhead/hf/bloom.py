"""BLOOM (Scao et al., 2022): ALiBi, a norm on the embeddings, q, k and v head by head in one."""

from __future__ import annotations

from polyhead.hf.family import EMBEDDING, FAMILY, FINAL_NORM, HEAD, LAYER, QKV, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import DECODER, Fields, Key, fixed, norm, number, only, passed, size, tied
from polyhead.hf.table import both, head_by_head, one


def either(name: str, other: str, place: str, default: int) -> Key:
    """A size under the name that the file has it by."""

    def read(given: Given, fields: Fields) -> Fields:
        there = other if given.has(other) and not given.has(name) else name
        return {place: given.size(there, default)}

    return size(name, place, default)._replace(read=read)


def inner(given: Given, fields: Fields) -> Fields:
    """One width of the feed-forward is built."""
    given.only("n_inner", 4 * fields["d_model"])
    return {}


KEYS = (
    DECODER,
    only("apply_residual_connection_post_layernorm", False),
    passed("slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion"),
    passed("skip_bias_add", "skip_bias_add_qkv", "offset_alibi"),
    size("vocab_size", "vocab_size", 250880),
    either("hidden_size", "n_embed", "d_model", 64),
    either("n_layer", "num_hidden_layers", "n_layers", 2),
    either("n_head", "num_attention_heads", "n_heads", 8),
    Key(inner),
    size("seq_length", "max_len", 2048),  # of older files, and no limit: positions are distances
    fixed(position="alibi", attention={"bias": True}, embedding_norm=True),
    fixed(feed_forward={"name": "gelu", "tanh": True}),
    norm("layer_norm_epsilon", "layernorm", 1e-5),
    number("attention_dropout", "attention.dropout", 0.0),
    number("hidden_dropout", "dropout", 0.0),
    tied(True),
)
BLOCK = "transformer.h.{n}"
TABLE = (
    *one("transformer.word_embeddings.weight", EMBEDDING),
    *both("transformer.word_embeddings_layernorm", "embedding.norm"),
    *both(f"{BLOCK}.input_layernorm", f"{LAYER}.attn_residual.norm"),
    *both(f"{BLOCK}.self_attention.query_key_value", *QKV, weight=head_by_head, bias=head_by_head),
    *both(f"{BLOCK}.self_attention.dense", f"{LAYER}.attn.o_proj"),
    *both(f"{BLOCK}.post_attention_layernorm", f"{LAYER}.ffn_residual.norm"),
    *both(f"{BLOCK}.mlp.dense_h_to_4h", f"{LAYER}.ffn.up_proj"),
    *both(f"{BLOCK}.mlp.dense_4h_to_h", f"{LAYER}.ffn.down_proj"),
    *both("transformer.ln_f", FINAL_NORM),
    *one("lm_head.weight", HEAD),
)
TIED = {"lm_head.weight": "transformer.word_embeddings.weight"}
FAMILY.register("bloom")(Family({"CausalLM": "BloomForCausalLM"}, KEYS, TABLE, "transformer.", tied=TIED))
