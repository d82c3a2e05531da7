"""Read and write rope with different options for windowed and full-attention layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.layer_types import FULL_ATTENTION, layer_choice
from polyhead.hf.families.llama import read_rope_scaling, write_rope

# per layer type: key of its theta in older files, if any, and default theta
RopeThetas = Mapping[str, tuple[str | None, float]]


def read_ropes(reader: ConfigReader, thetas: RopeThetas, max_len: int) -> dict[str, dict[str, Any]]:
    """Return rope per layer type, from rope_parameters; older files have thetas and a scaling of
    full-attention layers.
    """
    ropes = {}
    new_section, old_section = reader.get_section("rope_parameters"), reader.get_section("rope_scaling")
    for kind, (key, theta) in thetas.items():
        section = (new_section.get_section(kind) if new_section else None) or ConfigReader(
            {}, reader.location
        )
        if old_section and kind == FULL_ATTENTION:
            section = ConfigReader(
                section.values | old_section.values, old_section.location
            )  # precedence of transformers
        options = {"name": "rope", "theta": theta if key is None else reader.get_float(key, theta)}
        ropes[kind] = read_rope_scaling(section, options, max_len)
    if new_section:
        new_section.reject_unknown()
    return ropes


def write_ropes(config: ModelConfig, thetas: RopeThetas, kinds: list[str]) -> dict[str, Any]:
    """Inverse of ``read_ropes`` for these layer types."""
    options = {kind: layer_choice(config, "position", kinds.index(kind)).options for kind in kinds}
    parameters = {
        kind: write_rope(options.get(kind, {"theta": theta})) for kind, (_, theta) in thetas.items()
    }
    return {
        **{key: parameters[kind]["rope_theta"] for kind, (key, _) in thetas.items() if key is not None},
        "rope_scaling": parameters[FULL_ATTENTION]["rope_scaling"],
        "rope_parameters": {kind: values["rope_parameters"] for kind, values in parameters.items()},
    }
