"""OLMo 3 (2025): OLMo 2 with windows in all but every fourth layer, and scaled rope in the others alone."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf import olmo2
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, passed
from polyhead.hf.llama import BUFFERS, TIED
from polyhead.hf.pattern import WHOLE, WINDOW, kinds_of, turned, window_of, windows_said
from polyhead.hf.ropes import ropes, ropes_said

# the reference gives a theta of older files to the layers that see all
THETAS = {WHOLE: ("rope_theta", 500_000.0), WINDOW: (None, 500_000.0)}


def layers(given: Given, fields: Fields) -> Fields:
    """Without a word on the layers all but every fourth have a window."""
    positions = ropes(given, THETAS, fields["max_len"])
    kinds = kinds_of(given, fields["n_layers"], lambda layer: (layer + 1) % 4 > 0)
    turns: dict[str, Fields] = {WHOLE: {}}
    if WINDOW in kinds:
        size = window_of(given)
        turns[WINDOW] = {"attention": fields["attention"] | {"window": size}, "position": positions[WINDOW]}
    return {
        "position": positions[WHOLE],
        "pattern": turned(kinds, turns),
    }


def layers_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``layers``."""
    windows = windows_said(config, config.max_len)
    return windows | ropes_said(config, THETAS, windows["layer_types"])


KEYS = (passed("sliding_window"), *olmo2.keys(Key()), Key(layers, layers_said))
FAMILY.register("olmo3")(Family({"CausalLM": "Olmo3ForCausalLM"}, KEYS, olmo2.TABLE, "model.", BUFFERS, TIED))
