"""BART (Lewis et al., 2019), and the table that mBART, Marian and M2M100 have as well."""

from __future__ import annotations

from polyhead.hf.family import FAMILY, HEAD, Family, activation
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, flag, number, only, passed, size
from polyhead.hf.table import COPIED, Row, Step, both, one
from polyhead.hf.vocabularies import framed_bytes
from polyhead.text.specials import ROLES

BIAS = "final_logits_bias"
SHARED, SOURCE, TARGET = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)
LM_HEAD = "lm_head.weight"
ROW = Step(lambda ours: ours[0][None], lambda theirs, rows: [theirs[0]])  # (V,) as (1, V)


def of_both(name: str, place: str, default: int) -> Key:
    """A size that encoder and decoder have alike; of the decoder's nothing follows from the encoder's."""
    encoder, decoder = f"encoder_{name}", f"decoder_{name}"

    def read(given: Given, fields: Fields) -> Fields:
        value = given.size(encoder, default)
        given.assume(**{decoder: default})
        given.only(decoder, value)
        return {place: value}

    return Key(read, lambda config: dict.fromkeys((encoder, decoder), getattr(config, place)))


def tied(given: Given, fields: Fields) -> Fields:
    """Whether all is one matrix, or each its own. Before version 5 of the reference both sides had one even then, and
    files of that time hold it alone.
    """
    apart = "none" if given.holds(TARGET, True) else "inputs"
    return {"tie_embeddings": "all" if given.flag("tie_word_embeddings", True) else apart}


def keys(*, pre: bool, embedding_norm: bool = False, static: bool = True) -> tuple[Key, ...]:
    """What these families say alike, with norms before the sub-layers (``pre``) or behind them, one on embeddings or none,
    and positions that are computed (``static``) or learned."""
    return (
        # of configs before 2021, which say what a family is
        only("normalize_before", pre),
        only("add_final_layer_norm", pre),
        only("normalize_embedding", embedding_norm),
        only("static_position_embeddings", static),
        only("add_bias_logits", False),
        passed("extra_pos_embeddings", "force_bos_token_to_be_generated", "save_step"),
        passed("init_std", "encoder_layerdrop", "decoder_layerdrop"),
        passed("classifier_dropout", "classif_dropout", "num_hidden_layers"),
        fixed(kind="encoder-decoder", attention="softmax", norm="layernorm", init="normal"),
        fixed(norm_first=pre, embedding_norm=embedding_norm),
        Key(tied, lambda config: {"tie_word_embeddings": config.tie_embeddings in ("all", "target")}),
        size("vocab_size", "vocab_size"),
        size("d_model", "d_model", 1024),
        size("encoder_layers", "n_layers", 12),
        size("decoder_layers", "n_decoder_layers", 12),
        of_both("attention_heads", "n_heads", 16),
        of_both("ffn_dim", "d_ff", 4096),
        size("max_position_embeddings", "max_len", 1024),
        activation("activation_function", "gelu"),
        number("attention_dropout", "attention.dropout", 0.0),
        number("activation_dropout", "feed_forward.dropout", 0.0),
        number("dropout", "dropout", 0.1),
        flag("scale_embedding", "scale_embedding", False),
        Key(lambda given, fields: {"head_bias": given.holds(BIAS, True)}),
        Key(write=lambda config: {"is_encoder_decoder": True}),
    )


LEARNED = fixed(position={"name": "learned", "offset": 2})
KEYS = (*keys(pre=False, embedding_norm=True, static=False), LEARNED)


def stack(side: str) -> list[Row]:
    """The rows of the encoder or of the decoder."""
    theirs, ours = f"model.{side}.layers.{{n}}", f"{side}.layers.{{n}}"
    found = [
        *one(f"model.{side}.embed_positions.weight", f"{side}_embedding.position.weight"),
        *both(f"model.{side}.layernorm_embedding", f"{side}_embedding.norm"),
    ]
    for name, attention, residual in [("self_attn", "attn", "attn"), ("encoder_attn", "cross", "cross")]:
        for x in "qkv":
            found += both(f"{theirs}.{name}.{x}_proj", f"{ours}.{attention}.{x}_proj")
        found += both(f"{theirs}.{name}.out_proj", f"{ours}.{attention}.o_proj")
        found += both(f"{theirs}.{name}_layer_norm", f"{ours}.{residual}_residual.norm")
    return [
        *found,
        *both(f"{theirs}.fc1", f"{ours}.ffn.up_proj"),
        *both(f"{theirs}.fc2", f"{ours}.ffn.down_proj"),
        *both(f"{theirs}.final_layer_norm", f"{ours}.ffn_residual.norm"),
        *both(f"model.{side}.layer_norm", f"{side}.final_norm"),
    ]


EMBEDDING = "encoder_embedding.token.weight"
BODY = (
    *one(SOURCE, EMBEDDING, step=COPIED, where=lambda config: config.tie_embeddings != "all"),
    *one(TARGET, EMBEDDING, step=COPIED, where=lambda config: config.tie_embeddings == "inputs"),
    *one(TARGET, "decoder_embedding.token.weight"),
    *stack("encoder"),
    *stack("decoder"),
    *one(BIAS, "head.bias", step=ROW),
    *one(LM_HEAD, HEAD),
)
# the shared one is there even where nobody reads it, because all have their own
TABLE = (*one(SHARED, EMBEDDING), *BODY)
TIED = {SOURCE: SHARED, TARGET: SHARED, LM_HEAD: SHARED}
BUFFERS = r"model\.(en|de)coder\.version"  # of files before 2021
FAMILY.register("bart")(
    Family(
        {"Seq2Seq": "BartForConditionalGeneration"},
        KEYS,
        TABLE,
        "model.",
        BUFFERS,
        TIED,
        specials=ROLES,
        vocabulary=framed_bytes,
    )
)
