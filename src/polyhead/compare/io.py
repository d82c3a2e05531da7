"""Files of a comparison: ``OUT/comparison.json``, and for each trial a directory ``OUT/cells/NAME``.

A trial's directory is a run directory with additional files: cell.json (its settings), steps.json (its number
of steps), clock.jsonl (training time at each logged step), outputs.json (the data for significance tests) and
result.json (the measurements, written last).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyhead.core.atomic_io import replace_file
from polyhead.core.errors import UserError
from polyhead.core.json_io import decode_json

ResultRow = Mapping[str, Any]  # one design of the results
ResultRows = Sequence[ResultRow]
JsonDict = dict[str, Any]
COMPARISON_FILE = "comparison.json"
TRIAL_FILE = "cell.json"
STEPS_FILE = "steps.json"
CLOCK_FILE = "clock.jsonl"
OUTPUTS_FILE = "outputs.json"
RESULT_FILE = "result.json"


def read_json_file(path: Path) -> JsonDict | None:
    """Read the JSON object in a file; None if the file does not exist, a UserError if it is damaged."""
    try:
        value = decode_json(path.read_bytes(), path.name)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); delete it to continue without it") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object; delete it to continue without it")
    return value


def write_json_file(path: Path, value: JsonDict) -> None:
    """Write a JSON file atomically; non-finite numbers are written as null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(_replace_nonfinite(value), indent=1, ensure_ascii=False) + "\n").encode())


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: _replace_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(inner) for inner in value]
    return value
