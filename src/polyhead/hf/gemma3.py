"""Gemma 3 (2025), its text models: Gemma 2 with normed queries and keys, and another rope in layers that see all.

EmbeddingGemma is its encoder: every token sees those behind it as well, in a window to either side.
"""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.gemma2 import TABLE, around, bound, scores
from polyhead.hf.gemma2 import write as write_2
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TIED, attention, common
from polyhead.hf.pattern import WHOLE, WINDOW, kinds_of, turn, window_of, windows_said
from polyhead.hf.ropes import ropes, ropes_said

THETAS = {WHOLE: ("rope_theta", 1_000_000.0), WINDOW: ("rope_local_base_freq", 10_000.0)}  # of older files
MAX_LEN = 131_072
BARE = "Gemma3TextModel"


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. Without a word on the layers all but every sixth have a window.

    That of an encoder is as wide as the file says on both sides together.
    """
    if given.has("attn_logit_softcapping"):
        raise given.wrong(
            "attn_logit_softcapping", "null; the reference does not bound scores, whatever is here"
        )
    every, encoder = given.size("sliding_window_pattern", 6), given.flag("use_bidirectional_attention", False)
    given.passed("_sliding_window_pattern", "attn_logit_softcapping", "sliding_window")
    positions = ropes(given, THETAS, MAX_LEN)
    given.assume(hidden_size=2304, num_hidden_layers=26, num_attention_heads=8)
    fields = common(given, kv_heads=4, head_dim=256, max_len=MAX_LEN, position=positions[WHOLE])
    options = scores(given, fields) | {"qk_norm": "around_one", "qk_eps": fields["norm"]["eps"]}
    kinds = kinds_of(given, fields["n_layers"], lambda layer: (layer + 1) % every > 0)
    turns: dict[str, dict[str, Any]] = {WHOLE: {}}
    if WINDOW in kinds:
        size = window_of(given)
        window = size // 2 + 1 if encoder else size  # to one side, the token itself included
        turns[WINDOW] = attention(given, **options, window=window) | {"position": positions[WINDOW]}
    if encoder:
        given.only("architectures", [BARE])
    return around(given, fields, bound(given, "final_logit_softcapping", None)) | {
        **({"kind": "encoder", "head": False} if encoder else {}),
        **attention(given, **options),
        "pattern": [turns[kind] for kind in turn(kinds)] if WINDOW in kinds else [],
    }


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json, with the keys of older readers beside those of today."""
    fields = {key: value for key, value in write_2(config).items() if key != "attn_logit_softcapping"}
    encoder, window = config.kind == "encoder", windows_said(config)["sliding_window"]
    if encoder and window is not None:
        fields["sliding_window"] = max(1, 2 * (window - 1))
    kinds = fields["layer_types"]
    lengths = range(1, len(kinds) + 2)
    every = [n for n in lengths if kinds == [WINDOW if (i + 1) % n else WHOLE for i in range(len(kinds))]]
    return fields | {
        **({"sliding_window_pattern": every[0]} if every else {}),
        **ropes_said(config, THETAS, kinds),
        "use_bidirectional_attention": encoder,
    }


GEMMA3 = FAMILY.register("gemma3_text")(
    Family({"CausalLM": "Gemma3ForCausalLM", "Embedder": BARE}, read, write, TABLE, "model.", BUFFERS, TIED)
)
