"""EXAONE 4.0 (LG AI Research, 2025): OLMo 2 with queries and keys normed head by head; beside layers with windows, which have
rope, those that see all have no positions."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf import llama
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, unsaid
from polyhead.hf.llama import BUFFERS, TIED, query_norms, rope_said
from polyhead.hf.olmo2 import TABLE
from polyhead.hf.pattern import WHOLE, WINDOW, kinds_of, part, rope_of, turned, windows_said


def layers(given: Given, fields: Fields) -> Fields:
    """Without a size of windows all layers see all, and have rope."""
    size = None if given.null("sliding_window") else given.size("sliding_window", 4096)
    given.passed("sliding_window", "sliding_window_pattern")
    every = 1 if size is None or given.has("layer_types") else given.size("sliding_window_pattern", 4)
    kinds = kinds_of(given, fields["n_layers"], lambda layer: (layer + 1) % every > 0)
    if size is None and WINDOW in kinds:
        raise given.wrong("layer_types", f"{WHOLE} for each layer, as sliding_window is null")
    turns: dict[str, Fields] = {
        WHOLE: {} if size is None else {"position": "none"},
        WINDOW: {"attention": fields["attention"] | {"window": size}},
    }
    return {"pattern": turned(kinds, turns)}


def layers_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``layers``, and the rope of those that have it."""
    # where no layer has a window, a size of one says that none has positions
    positions = [part(config, "position", i).name for i in range(config.n_layers)]
    without = config.max_len if "none" in positions else None
    return rope_said(rope_of(config)) | windows_said(config, without)


KEYS = (
    unsaid(vocab_size=102400, intermediate_size=16384, rms_norm_eps=1e-5),
    *llama.keys(),
    fixed(attention={"bias": False}, sandwich_norm="after"),
    query_norms(True),
    Key(layers, layers_said),
)
FAMILY.register("exaone4")(Family({"CausalLM": "Exaone4ForCausalLM"}, KEYS, TABLE, "model.", BUFFERS, TIED))
