"""How a checkpoint makes one vector of a text, as sentence-transformers writes it (Reimers and Gurevych, 2019)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from polyhead.errors import UserError, show
from polyhead.hf.files import read_json, read_value
from polyhead.recipe import GenerationConfig

log = logging.getLogger(__name__)

MODULES, POOLING = "modules.json", "1_Pooling/config.json"
POOLS = {"cls": "first", "mean": "mean", "max": "max"}  # theirs -> ours
OLD = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}  # how older files say it
PLAIN = ("Transformer", "Dropout")  # what changes nothing here


def embedding_of(directory: Path) -> dict[str, Any]:
    """Fields of GenerationConfig; none where the checkpoint does not say. A warning names steps that are not built here."""
    steps = read_value(directory, MODULES)
    if steps is None:
        return {}
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise UserError(f"{directory / MODULES} must hold a list of objects")
    found: dict[str, Any] = {}
    for step in steps:
        name, path = str(step.get("type")).rsplit(".", 1)[-1], f"{step.get('path')}/config.json"
        if name == "Pooling":
            found["pooling"] = _pool(read_json(directory, path) or {}, directory / path)
        elif name == "Normalize":
            found["normalize"] = True
        elif name not in PLAIN:
            log.warning(
                "%s: vectors of texts go through %s there, and without it here", directory / MODULES, name
            )
    return found


def modules(generation: GenerationConfig, width: int, max_len: int) -> dict[str, Any]:
    """The files that say it, by name; none for a pooling that is the model's own."""
    theirs = {ours: name for name, ours in POOLS.items()}.get(generation.pooling)
    if theirs is None:
        return {}
    steps = {"": "Transformer", "1_Pooling": "Pooling"} | (
        {"2_Normalize": "Normalize"} if generation.normalize else {}
    )
    return {
        MODULES: [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (path, name) in enumerate(steps.items())
        ],
        POOLING: {"word_embedding_dimension": width}
        | {f"pooling_mode_{old}": theirs == name for old, name in OLD.items()},
        "sentence_bert_config.json": {"max_seq_length": max_len, "do_lower_case": False},
    }


def _pool(given: dict[str, Any], where: Path) -> str:
    """The one pooling of a file, in our words."""
    prefix = "pooling_mode_"
    modes = [given["pooling_mode"]] if "pooling_mode" in given else [
        OLD.get(key.removeprefix(prefix), key) for key, value in given.items() if key.startswith(prefix) and value is True
    ]  # fmt: skip
    if len(modes) == 1 and isinstance(modes[0], str) and modes[0] in POOLS:
        return POOLS[modes[0]]
    log.warning("%s: pooling is %s, and here the mean; built are %s", where, show(modes), ", ".join(POOLS))
    return "mean"
