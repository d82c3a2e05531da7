"""How long training will take, told by its first steps, and at the end what it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from polyhead.analysis.forecast import Tick, compare_times, duration, seconds_at
from polyhead.core.i18n import tr
from polyhead.train.reporting import Reporter, Row


class Timed:
    """Reporters that are told the seconds of learning as well; a run that goes on, goes on counting.

    ``before`` are the rows of metrics that are kept from the ``done`` steps before.
    """

    def __init__(
        self,
        told: Reporter,
        before: Iterable[Mapping[str, Any]] = (),
        done: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.told, self.clock = told, clock
        rows = list(before)
        self.ticks = [
            Tick(row["step"], row["seconds"]) for row in rows if row["split"] == "train" and "seconds" in row
        ]
        self.evaluated = sum(row.get("seconds", 0.0) for row in rows if row["split"] == "valid")
        self.seconds = seconds_at(self.ticks, done)
        self.since, self.learning = clock(), False

    def say(self, line: str) -> None:
        self.told.say(line)
        if not self.learning:  # the last thing that is said before the first step comes right before it
            self.since = self.clock()

    def train(self, row: Row) -> None:
        now = self.clock()
        self.seconds, self.since, self.learning = self.seconds + now - self.since, now, True
        self.ticks.append(Tick(int(row["step"]), self.seconds))
        self.told.train({**row, "seconds": self.seconds})

    def valid(self, row: Row) -> None:
        self.since += row["seconds"]
        self.evaluated += row["seconds"]
        self.told.valid(row)

    def close(self) -> None:
        self.told.close()

    def compared(self, step: int) -> str:
        """What was predicted for the steps that were done, beside what they took; nothing if nothing was predicted."""
        found = compare_times(self.ticks, step, self.seconds)
        if found is None:
            return ""
        predicted, more = found
        return tr(
            "planned {planned} at step {step}, took {took} ({more:+.0%}); evaluations {evaluated} more",
            planned=duration(predicted.seconds),
            step=predicted.at,
            took=duration(self.seconds),
            more=more,
            evaluated=duration(self.evaluated),
        )
