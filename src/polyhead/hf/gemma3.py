"""Gemma 3 (2025), its text models: Gemma 2 with normed queries and keys, and another rope in layers that see all.

EmbeddingGemma is its encoder: every token sees those behind it as well, in a window to either side.
"""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.gemma2 import BOTH, TABLE
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, number, passed, unsaid
from polyhead.hf.llama import BUFFERS, TIED, query_norms
from polyhead.hf.pattern import WHOLE, WINDOW, kinds_of, turned, window_of, windows_said
from polyhead.hf.ropes import ropes, ropes_said

THETAS = {WHOLE: ("rope_theta", 1_000_000.0), WINDOW: ("rope_local_base_freq", 10_000.0)}  # of older files
BARE = "Gemma3TextModel"


def layers(given: Given, fields: Fields) -> Fields:
    """Without a word on the layers all but every sixth have a window.

    That of an encoder is as wide as the file says on both sides together.
    """
    if given.has("attn_logit_softcapping"):
        raise given.wrong(
            "attn_logit_softcapping", "null; the reference does not bound scores, whatever is here"
        )
    every, encoder = given.size("sliding_window_pattern", 6), given.flag("use_bidirectional_attention", False)
    positions = ropes(given, THETAS, fields["max_len"])
    kinds = kinds_of(given, fields["n_layers"], lambda layer: (layer + 1) % every > 0)
    turns: dict[str, Fields] = {WHOLE: {}}
    if WINDOW in kinds:
        size = window_of(given)
        window = size // 2 + 1 if encoder else size  # to one side, the token itself included
        turns[WINDOW] = {"attention": fields["attention"] | {"window": window}, "position": positions[WINDOW]}
    if encoder:
        given.only("architectures", [BARE])
    return {
        **({"kind": "encoder", "head": False} if encoder else {}),
        "position": positions[WHOLE],
        "pattern": turned(kinds, turns),
    }


def layers_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``layers``, with the keys of older readers beside those of today."""
    found = windows_said(config, config.max_len)
    encoder, window = config.kind == "encoder", windows_said(config)["sliding_window"]
    if encoder and window is not None:
        found["sliding_window"] = max(1, 2 * (window - 1))
    kinds = found["layer_types"]
    lengths = range(1, len(kinds) + 2)
    every = [n for n in lengths if kinds == [WINDOW if (i + 1) % n else WHOLE for i in range(len(kinds))]]
    return found | {
        **({"sliding_window_pattern": every[0]} if every else {}),
        **ropes_said(config, THETAS, kinds),
        "use_bidirectional_attention": encoder,
    }


KEYS = (
    unsaid(max_position_embeddings=131_072),
    passed("_sliding_window_pattern", "attn_logit_softcapping", "sliding_window"),
    *BOTH,
    query_norms("around_one"),
    number("final_logit_softcapping", "logit_softcap", optional=True),
    Key(layers, layers_said),
)
FAMILY.register("gemma3_text")(
    Family({"CausalLM": "Gemma3ForCausalLM", "Embedder": BARE}, KEYS, TABLE, "model.", BUFFERS, TIED)
)
