"""Training time at each step, without evaluations; a resumed trial continues the count."""

from __future__ import annotations

import json
import time
from pathlib import Path

from polyhead.core.atomic_io import replace_file
from polyhead.train.loggers import MetricsRow
from polyhead.viz.eta_model import StepTime, interpolate_seconds


def read_clock(path: Path) -> list[StepTime]:
    """Read the step times of a file; an incomplete last line is skipped."""
    if not path.is_file():
        return []
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    return [StepTime(*json.loads(line)) for line in lines]


class TrainingClock:
    """Reporter that writes the training time at every logged step.

    Evaluations come right after a logged step and are not counted.
    """

    def __init__(self, path: Path, from_step: int) -> None:
        ticks = read_clock(path)
        self.seconds = interpolate_seconds(ticks, from_step)
        ticks_before = [tick for tick in ticks if tick.step < from_step]
        ticks_before += [StepTime(from_step, self.seconds)] if from_step else []
        replace_file(path, "".join(json.dumps(tick) + "\n" for tick in ticks_before).encode())
        self.file, self.last_time, self.has_started = (
            path.open("a", encoding="utf-8"),
            time.perf_counter(),
            False,
        )

    def info(self, line: str) -> None:
        if not self.has_started:  # the last message before the first step comes right before it
            self.last_time = time.perf_counter()

    def log_train(self, row: MetricsRow) -> None:
        now = time.perf_counter()
        self.seconds, self.last_time, self.has_started = self.seconds + now - self.last_time, now, True
        self.file.write(json.dumps([int(row["step"]), round(self.seconds, 4)]) + "\n")
        self.file.flush()

    def log_valid(self, row: MetricsRow) -> None:
        self.last_time = time.perf_counter()

    def close(self) -> None:
        self.file.close()
