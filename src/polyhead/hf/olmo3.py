"""OLMo 3 (2025): OLMo 2 with windows in all but every fourth layer, and scaled rope in the others alone."""

from __future__ import annotations

from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf import olmo2
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.given import Given
from polyhead.hf.llama import BUFFERS, TIED
from polyhead.hf.pattern import WHOLE, WINDOW, kinds_of, turn, window_of, windows_said
from polyhead.hf.ropes import ropes, ropes_said

# the reference gives a theta of older files to the layers that see all
THETAS = {WHOLE: ("rope_theta", 500_000.0), WINDOW: (None, 500_000.0)}
MAX_LEN = 2048


def read(given: Given) -> dict[str, Any]:
    """config.json -> fields of ModelConfig. Without a word on the layers all but every fourth have a window."""
    given.passed("sliding_window")
    positions = ropes(given, THETAS, MAX_LEN)
    fields = olmo2.fields(given, MAX_LEN, position=positions[WHOLE])
    kinds = kinds_of(given, fields["n_layers"], lambda layer: (layer + 1) % 4 > 0)
    turns: dict[str, dict[str, Any]] = {WHOLE: {}}
    if WINDOW in kinds:
        size = window_of(given)
        turns[WINDOW] = {"attention": fields["attention"] | {"window": size}, "position": positions[WINDOW]}
    return fields | {"pattern": [turns[kind] for kind in turn(kinds)] if WINDOW in kinds else []}


def write(config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    windows = windows_said(config, config.max_len)
    return olmo2.write(config) | windows | ropes_said(config, THETAS, windows["layer_types"])


OLMO3 = FAMILY.register("olmo3")(
    Family({"CausalLM": "Olmo3ForCausalLM"}, read, write, olmo2.TABLE, "model.", BUFFERS, TIED)
)
