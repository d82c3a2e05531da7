"""rope of layers with a window and of those that see all, where the two are not the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyhead.config import ModelConfig
from polyhead.hf.given import Given
from polyhead.hf.llama import rope_said, scaled
from polyhead.hf.pattern import WHOLE, part

# of each kind of layer the key of its theta in older files, if there is one, and its theta where nothing is said
Thetas = Mapping[str, tuple[str | None, float]]


def ropes(given: Given, thetas: Thetas, max_len: int) -> dict[str, dict[str, Any]]:
    """rope_parameters of each kind, or in older files their thetas and one scaling, of layers that see all."""
    found = {}
    new, old = given.section("rope_parameters"), given.section("rope_scaling")
    for kind, (key, theta) in thetas.items():
        section = (new.section(kind) if new else None) or Given({}, given.where)
        if old and kind == WHOLE:
            section = Given(section.values | old.values, old.where)  # as the reference, where a file has both
        options = {"name": "rope", "theta": theta if key is None else given.number(key, theta)}
        found[kind] = scaled(section, options, max_len)
    if new:
        new.finish()
    return found


def ropes_said(config: ModelConfig, thetas: Thetas, kinds: list[str]) -> dict[str, Any]:
    """The way back, for layers of these kinds."""
    first = {kind: part(config, "position", kinds.index(kind)).options for kind in kinds}
    said = {kind: rope_said(first.get(kind, {"theta": theta})) for kind, (_, theta) in thetas.items()}
    return {
        **{key: said[kind]["rope_theta"] for kind, (key, _) in thetas.items() if key is not None},
        "rope_scaling": said[WHOLE]["rope_scaling"],
        "rope_parameters": {kind: one["rope_parameters"] for kind, one in said.items()},
    }
