"""The files of a comparison: ``OUT/comparison.json``, and for each cell ``OUT/cells/NAME`` with what it is and how it went.

A cell's directory is a run directory with more files: cell.json (what to do), steps.json (how long), clock.jsonl (when each
step was done), outputs.json (what significance is computed from) and result.json (what was measured, written last).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polyhead.errors import UserError
from polyhead.files import replace_file

COMPARISON, CELL, STEPS, CLOCK, OUTPUTS, RESULT = (
    "comparison.json",
    "cell.json",
    "steps.json",
    "clock.jsonl",
    "outputs.json",
    "result.json",
)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file, None where there is no file; a damaged one is a UserError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); delete it to go on without it") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no object; delete it to go on without it")
    return value


def write_json(path: Path, value: dict[str, Any]) -> None:
    """A JSON file, there whole or not at all; numbers that are not finite are written as null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(_finite(value), indent=1, ensure_ascii=False) + "\n").encode())


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
