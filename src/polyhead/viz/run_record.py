"""The training record of a run directory: metrics, recipe, final measures, report.json; no model.

Its steps and seconds predict the duration of a training.
"""

from __future__ import annotations

import bisect
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.config import yaml_io
from polyhead.core.atomic_io import file_exists, is_process_alive, read_regular_file
from polyhead.core.errors import MAX_INT, UserError
from polyhead.core.i18n import tr
from polyhead.core.json_io import decode_json
from polyhead.core.output_paths import did_you_mean_path
from polyhead.viz.samples import Samples

METRICS, REPORT, PAGE = "metrics.jsonl", "report.json", "report.html"
COUNTERS = ("step", "epoch", "seconds", "best", "split")  # columns of a row that are not metrics
_MAX_METRICS_BYTES, _MAX_REPORT_BYTES, _MAX_CARD_BYTES = 1 << 30, 1 << 26, 1 << 20
_MAX_VALUE = 1e100  # of a metric: sums and products of two are finite
_ROW = re.compile(r"\| ((?:(?! \| ).)*+) \| (.*) \|")


class RunRecord(NamedTuple):
    """The record of one training run, finished or not."""

    directory: Path
    name: str
    metrics: list[dict[str, Any]]  # the rows of metrics.jsonl
    recipe: Mapping[str, Any]  # recipe.yaml, empty if there is none
    facts: Mapping[str, str]  # the table of the final README.md, empty before the end
    report: Mapping[str, Any]  # report.json, empty for runs of older versions
    is_training: bool  # whether a process is training the run now

    @property
    def samples(self) -> Samples:
        """Outputs of the model at the last evaluation."""
        return Samples.from_json(self.report.get("samples") or {})

    @property
    def step(self) -> int:
        """The last step that was logged."""
        return max((int(row["step"]) for row in self.metrics), default=0)

    @property
    def steps(self) -> int:
        """The planned number of steps."""
        return max((int(row["steps"]) for row in self.metrics if row.get("steps")), default=self.step)

    @property
    def state(self) -> str:
        """training, done, stopped early, interrupted or failed; "unknown" for a run without report.json."""
        if self.is_training:
            return "training"
        saved = str(self.report.get("state", "unknown"))
        return "interrupted" if saved == "training" else saved  # its process was killed

    def rows(self, split: str) -> list[dict[str, Any]]:
        """The rows of train or valid."""
        return [row for row in self.metrics if row.get("split", "train") == split]


def read_run(directory: str | Path) -> RunRecord:
    """Read a run directory; a UserError if it contains no metrics."""
    directory = Path(directory)
    if not file_exists(directory / METRICS):
        expected = f"expected a directory written by polyhead train, with {METRICS}"
        problem = "is a file" if directory.is_file() else "has no training"
        if not directory.exists():
            problem = "does not exist"
            expected = f"{expected}{did_you_mean_path(directory, '*/', [Path('runs')])}"
        raise UserError(f"{directory} {problem}; {expected}")
    return RunRecord(
        directory,
        display_name(directory.resolve()),
        read_metrics(directory / METRICS),
        read_recipe_keys(directory / "recipe.yaml"),
        read_facts(directory / "README.md"),
        read_report(directory),
        is_training(directory),
    )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; an incomplete last line, from a killed process, is left out."""
    if not file_exists(path):
        return []
    with suppress(ValueError):
        *lines, _ = read_regular_file(path, max_bytes=_MAX_METRICS_BYTES).decode().split("\n")
        return [_parse_row(decode_json(line, path)) for line in lines]
    raise UserError(f"{path} is damaged: not every line is an object with a step; move it away to continue")


def _parse_row(row: Any) -> dict[str, Any]:
    """A row of metrics: a step, the split, and numbers; null for those that are not finite."""
    if not isinstance(row, dict) or type(row.get("step")) is not int or not 0 <= row["step"] <= MAX_INT:
        raise UserError("no row of metrics")
    for name, value in row.items():
        is_number = type(value) in (int, float)
        if not (isinstance(value, str) if name == "split" else is_number or value is None):
            raise UserError(f"{name} is not a number")
        if is_number and not abs(value) <= _MAX_VALUE:
            row[name] = None
    return row


def read_recipe_keys(path: Path) -> dict[str, Any]:
    """The keys of a run's recipe.yaml; empty if it is missing."""
    if not file_exists(path):
        return {}
    return yaml_io.decode_yaml(read_regular_file(path, max_bytes=yaml_io.MAX_RECIPE_BYTES), path)


def read_facts(path: Path) -> dict[str, str]:
    """The table of a run's README.md: measure and value."""
    if not file_exists(path):
        return {}
    text = read_regular_file(path, max_bytes=_MAX_CARD_BYTES).decode(errors="replace")
    rows = [_ROW.fullmatch(line) for line in text.splitlines()]
    facts = dict([text.replace("\\|", "|") for text in row.groups()] for row in rows if row)
    return {name: value for name, value in facts.items() if value.strip() and name not in ("measure", "---")}


def read_report(directory: Path) -> dict[str, Any]:
    """The content of report.json; empty if it is missing or unreadable: the page does not require it."""
    try:
        report = decode_json(read_regular_file(directory / REPORT, max_bytes=_MAX_REPORT_BYTES), REPORT)
        Samples.from_json(report.get("samples") or {})
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    return dict(report)


def is_training(directory: Path) -> bool:
    """Whether the process that holds the lock of the run is alive; assumed for a lock of another machine."""
    try:
        lock = decode_json(read_regular_file(directory / "run.lock", max_bytes=4096), "run.lock")
        return bool(
            lock["host"] != socket.gethostname() or is_process_alive(int(lock["pid"]), int(lock["start"]))
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return False


def display_name(directory: Path) -> str:
    """The name of a directory as text, also where the file system has bytes that are no UTF-8."""
    return os.fsencode(directory.name).decode(errors="replace")


def read_nll(row: Mapping[str, Any]) -> float | None:
    """The negative log-likelihood per label, without smoothing; None if it was not finite.

    ``loss`` is the training objective, which may be smoothed, distilled or summed with another. Rows without
    ``nll``, of older versions, have it as the logarithm of the perplexity.
    """
    if isinstance(row.get("nll"), int | float):
        return float(row["nll"])
    if isinstance(row.get("ppl"), int | float) and row["ppl"] > 0:
        return math.log(row["ppl"])
    return float(row["loss"]) if isinstance(row.get("loss"), int | float) else None


_MIN_STEPS = 20  # minimum steps for a prediction, after the warm-up steps of the first row


class StepTime(NamedTuple):
    """A step, and the training time until its end in seconds, without evaluations, with checkpoints."""

    step: int
    seconds: float


class TimeForecast(NamedTuple):
    """A predicted duration, and the step of the prediction."""

    seconds: float
    step: int


def predict_time(step_times: Sequence[StepTime], steps: int) -> TimeForecast | None:
    """Predict the seconds of ``steps`` steps from the speed between the first entry and a later one.

    None if there are too few steps, or if the prediction would be in the second half of the run.
    """
    for entry in step_times[1:]:
        done = entry.step - step_times[0].step
        if done >= _MIN_STEPS:
            remaining = (steps - entry.step) * (entry.seconds - step_times[0].seconds) / done
            return TimeForecast(entry.seconds + remaining, entry.step) if 2 * entry.step <= steps else None
    return None


def interpolate_seconds(step_times: Sequence[StepTime], step: int) -> float:
    """The seconds until a step, by linear interpolation."""
    entries = [StepTime(0, 0.0), *step_times]
    after = bisect.bisect_left(entries, step, key=lambda entry: entry.step)
    if after >= len(entries):  # after the last entry: extrapolate with the mean speed
        last = entries[-1]
        return last.seconds * step / last.step if last.step else 0.0
    a, b = entries[max(after - 1, 0)], entries[after]
    return (
        b.seconds
        if b.step == a.step
        else a.seconds + (b.seconds - a.seconds) * (step - a.step) / (b.step - a.step)
    )


def compare_times(
    step_times: Sequence[StepTime], step: int, seconds: float
) -> tuple[TimeForecast, float] | None:
    """The prediction for the completed steps, and the relative difference of the actual time."""
    predicted = predict_time(step_times, step)
    return predicted and (predicted, seconds / max(predicted.seconds, 1e-9) - 1)


def format_seconds(seconds: float) -> str:
    """Format seconds for people, as hours, minutes and seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return tr("{hours} h {minutes:02} min", hours=hours, minutes=minutes)
    if minutes:
        return tr("{minutes} min {seconds:02} s", minutes=minutes, seconds=seconds)
    return tr("{seconds} s", seconds=seconds)
