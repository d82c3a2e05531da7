"""Time that was spent learning, evaluations left out, step by step; a cell that is resumed goes on counting."""

from __future__ import annotations

import json
import time
from pathlib import Path

from polyhead.analysis.forecast import Tick, seconds_at
from polyhead.files import replace_file
from polyhead.train.reporting import Row


def read_clock(path: Path) -> list[Tick]:
    """The ticks of a file; a last line that a kill cut short is left out."""
    if not path.is_file():
        return []
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    return [Tick(*json.loads(line)) for line in lines]


class Clock:
    """A reporter that writes a tick at every logged step. Evaluations come right after one and are not counted."""

    def __init__(self, path: Path, from_step: int) -> None:
        ticks = read_clock(path)
        self.seconds = seconds_at(ticks, from_step)
        kept = [tick for tick in ticks if tick.step < from_step]
        kept += [Tick(from_step, self.seconds)] if from_step else []
        replace_file(path, "".join(json.dumps(tick) + "\n" for tick in kept).encode())
        self.file, self.since, self.learning = path.open("a", encoding="utf-8"), time.perf_counter(), False

    def say(self, line: str) -> None:
        if not self.learning:  # the last thing that is said before the first step comes right before it
            self.since = time.perf_counter()

    def train(self, row: Row) -> None:
        now = time.perf_counter()
        self.seconds, self.since, self.learning = self.seconds + now - self.since, now, True
        self.file.write(json.dumps([int(row["step"]), round(self.seconds, 4)]) + "\n")
        self.file.flush()

    def valid(self, row: Row) -> None:
        self.since = time.perf_counter()

    def close(self) -> None:
        self.file.close()
