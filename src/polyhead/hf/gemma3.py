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
from polyhead.hf.llama import BUFFERS, TIED, attention, common, rope_said, scaled
from polyhead.hf.pattern import WHOLE, WINDOW, kinds_of, part, turn, windows_said

THETAS = {WHOLE: ("rope_theta", 1_000_000.0), WINDOW: ("rope_local_base_freq", 10_000.0)}  # of older files
MAX_LEN = 131_072
BARE = "Gemma3TextModel"


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. Without a word on the layers all but every sixth have a window.

    That of an encoder is as wide as the file says on both sides together.
    """
    given.only("rms_norm_eps", 1e-6)  # that of qk_norm
    if given.has("attn_logit_softcapping"):
        raise given.wrong(
            "attn_logit_softcapping", "null; the reference does not bound scores, whatever is here"
        )
    every, encoder = given.size("sliding_window_pattern", 6), given.flag("use_bidirectional_attention", False)
    given.passed("_sliding_window_pattern", "attn_logit_softcapping", "sliding_window")
    ropes = positions(given)
    fields = common(given, kv_heads=4, head_dim=256, max_len=MAX_LEN, position=ropes[WHOLE])
    options = scores(given, fields) | {"qk_norm": "around_one"}
    kinds = kinds_of(given, fields["n_layers"], lambda layer: (layer + 1) % every > 0)
    turns: dict[str, dict[str, Any]] = {WHOLE: {}}
    if WINDOW in kinds:
        size = given.size("sliding_window", None if given.null("sliding_window") else 4096)
        window = size // 2 + 1 if encoder else size  # to one side, the token itself included
        turns[WINDOW] = attention(given, **options, window=window) | {"position": ropes[WINDOW]}
    if encoder:
        given.only("architectures", [BARE])
    return around(given, fields, bound(given, "final_logit_softcapping", None)) | {
        **({"kind": "encoder", "head": False} if encoder else {}),
        **attention(given, **options),
        "pattern": [turns[kind] for kind in turn(kinds)] if WINDOW in kinds else [],
    }


def positions(given: Given) -> dict[str, dict[str, Any]]:
    """rope of either kind of layer: rope_parameters of each kind, or in older files two thetas and one scaling."""
    max_len, found = given.size("max_position_embeddings", MAX_LEN), {}
    new, old = given.section("rope_parameters"), given.section("rope_scaling")
    for kind, (key, theta) in THETAS.items():
        section = (new.section(kind) if new else None) or Given({}, given.where)
        if old and kind == WHOLE:
            section = Given(section.values | old.values, old.where)  # as the reference, where a file has both
        found[kind] = scaled(section, {"name": "rope", "theta": given.number(key, theta)}, max_len)
    if new:
        new.finish()
    return found


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json, with the keys of older readers beside those of today."""
    fields = {key: value for key, value in write_2(config).items() if key != "attn_logit_softcapping"}
    encoder, window = config.kind == "encoder", windows_said(config)["sliding_window"]
    if encoder and window is not None:
        fields["sliding_window"] = max(1, 2 * (window - 1))
    kinds = fields["layer_types"]
    first = {kind: part(config, "position", kinds.index(kind)).options for kind in kinds}
    ropes = {kind: rope_said(first.get(kind, {"theta": theta})) for kind, (_, theta) in THETAS.items()}
    lengths = range(1, len(kinds) + 2)
    every = [n for n in lengths if kinds == [WINDOW if (i + 1) % n else WHOLE for i in range(len(kinds))]]
    return fields | {
        **({"sliding_window_pattern": every[0]} if every else {}),
        **{key: ropes[kind]["rope_theta"] for kind, (key, _) in THETAS.items()},
        "rope_scaling": ropes[WHOLE]["rope_scaling"],
        "rope_parameters": {kind: said["rope_parameters"] for kind, said in ropes.items()},
        "use_bidirectional_attention": encoder,
    }


GEMMA3 = FAMILY.register("gemma3_text")(
    Family({"CausalLM": "Gemma3ForCausalLM", "Embedder": BARE}, read, write, TABLE, "model.", BUFFERS, TIED)
)
