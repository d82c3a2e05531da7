"""Configs of the reference implementation: seq2seq, by family."""

from __future__ import annotations

from typing import Any, NamedTuple

PAD, BOS, EOS, LANGUAGE = 0, 1, 2, 4  # <mask> plays a language


class Case(NamedTuple):
    """A config of the reference implementation, and what is not at its default."""

    config: str
    sizes: dict[str, Any]


T5 = {"d_model": 16, "d_kv": 6, "num_layers": 1, "num_decoder_layers": 2, "num_heads": 3, "d_ff": 20}
BART = {
    "d_model": 18, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 64,
}  # fmt: skip
ODD = {
    **BART,
    "d_model": 20,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 5,
    "encoder_layers": 3,
    "decoder_layers": 1,
}
EOS_FIRST = {"decoder_start_token_id": EOS}
PAD_FIRST = {"decoder_start_token_id": PAD}
UNTIED = {"tie_word_embeddings": False}
CASES = {
    "t5": [
        Case("T5Config", T5 | PAD_FIRST),
        Case("T5Config", T5 | PAD_FIRST | {"feed_forward_proj": "gated-gelu", "own_head": True, "d_kv": 5,
            "num_heads": 4,
                                           "relative_attention_num_buckets": 8, "relative_attention_max_dist"
                                               "ance": 9}),
        Case("T5Config", T5 | PAD_FIRST | {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False,
            "num_layers": 3,
                                           "num_decoder_layers": 1, "layer_norm_epsilon": 1e-3}),
        Case("T5Config", T5 | PAD_FIRST | {"feed_forward_proj": "gelu_new", "d_model": 10,
            "num_decoder_layers": None}),
    ],
    "mt5": [
        Case("MT5Config", T5 | PAD_FIRST | {"own_head": True}),
        Case("MT5Config", T5 | PAD_FIRST | {"d_kv": 5, "num_heads": 4, "relative_attention_num_buckets": 8,
                                            "relative_attention_max_distance": 9,
                                            "layer_norm_epsilon": 1e-3}),
        Case("MT5Config", T5 | PAD_FIRST | {"own_head": True, "feed_forward_proj": "relu", "num_layers": 3,
            "d_model": 10,
                                            "num_decoder_layers": 1}),
    ],
    "bart": [
        Case("BartConfig", BART | EOS_FIRST | {"framed": ([BOS], [EOS])}),
        Case("BartConfig", ODD | EOS_FIRST | {"forced_bos_token_id": BOS, "scale_embedding": True,
            "framed": ([BOS], [EOS])}),
        Case("BartConfig", BART | EOS_FIRST | {"activation_function": "relu", "decoder_layers": 1}),
        Case("BartConfig", BART | EOS_FIRST | UNTIED),
    ],
    "mbart": [
        Case("MBartConfig", BART | {"decoder_start_token_id": LANGUAGE, "framed": ([], [EOS, 3])}),
        Case("MBartConfig", ODD | EOS_FIRST | {"forced_bos_token_id": LANGUAGE, "scale_embedding": True,
            "framed": ([3], [EOS])}),
        Case("MBartConfig", BART | {"decoder_start_token_id": LANGUAGE, "activation_function": "silu",
            "decoder_layers": 1}),
        Case("MBartConfig", ODD | EOS_FIRST | UNTIED | {"scale_embedding": True}),
    ],
    "marian": [
        Case("MarianConfig", BART | PAD_FIRST | {"activation_function": "swish", "scale_embedding": True,
            "bad_words_ids": [[PAD]]}),
        Case("MarianConfig", ODD | PAD_FIRST | {"share_encoder_decoder_embeddings": False,
            "bad_words_ids": [[PAD]]}),
        Case("MarianConfig", BART | PAD_FIRST | {"activation_function": "relu", "decoder_layers": 1}),
        Case("MarianConfig", BART | PAD_FIRST | UNTIED | {"share_encoder_decoder_embeddings": False,
            "bad_words_ids": [[PAD]]}),
    ],
    "pegasus": [
        Case("PegasusConfig", BART | PAD_FIRST | {"activation_function": "relu", "scale_embedding": True}),
        Case("PegasusConfig", ODD | PAD_FIRST),
        Case("PegasusConfig", BART | PAD_FIRST | {"activation_function": "gelu_new", "decoder_layers": 3,
            "encoder_layers": 3}),
        Case("PegasusConfig", BART | PAD_FIRST | UNTIED | {"scale_embedding": True}),
    ],
    "m2m_100": [
        Case("M2M100Config", BART | EOS_FIRST | {"forced_bos_token_id": LANGUAGE, "framed": ([3], [EOS])}),
        Case("M2M100Config", ODD | EOS_FIRST | {"scale_embedding": False, "activation_function": "gelu"}),
        Case("M2M100Config", BART | EOS_FIRST | {"decoder_layers": 3, "forced_bos_token_id": LANGUAGE,
            "framed": ([3], [EOS])}),
        Case("M2M100Config", ODD | EOS_FIRST | UNTIED),
    ],
}  # fmt: skip
