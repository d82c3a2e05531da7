"""Forecast of the training time from the first steps, compared at the end with the time taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from polyhead.core.i18n import tr
from polyhead.train.loggers import MetricsRow, Reporter
from polyhead.viz.eta_model import StepTime, compare_times, format_seconds, interpolate_seconds


class EtaReporter:
    """Adds the training time in seconds, without evaluations, to train rows; forwards to ``reporter``.

    On resume the count continues: ``previous_rows`` are the metrics of the ``n_done`` steps before.
    """

    def __init__(
        self,
        reporter: Reporter,
        previous_rows: Iterable[Mapping[str, Any]] = (),
        n_done: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.reporter, self.clock = reporter, clock
        rows = list(previous_rows)
        self.step_times = [
            StepTime(row["step"], row["seconds"])
            for row in rows
            if row["split"] == "train" and "seconds" in row
        ]
        self.eval_seconds = sum(row.get("seconds", 0.0) for row in rows if row["split"] == "valid")
        self.train_seconds = interpolate_seconds(self.step_times, n_done)
        self.last_time, self.has_started = clock(), False

    def info(self, line: str) -> None:
        self.reporter.info(line)
        if not self.has_started:  # the last message before step 1 starts the clock
            self.last_time = self.clock()

    def log_train(self, row: MetricsRow) -> None:
        now = self.clock()
        self.train_seconds, self.last_time, self.has_started = (
            self.train_seconds + now - self.last_time,
            now,
            True,
        )
        self.step_times.append(StepTime(int(row["step"]), self.train_seconds))
        self.reporter.log_train({**row, "seconds": self.train_seconds})

    def log_valid(self, row: MetricsRow) -> None:
        self.last_time += row["seconds"]
        self.eval_seconds += row["seconds"]
        self.reporter.log_valid(row)

    def close(self) -> None:
        self.reporter.close()

    def compare_forecast(self, step: int) -> str:
        """Forecast and actual time of the first ``step`` steps, in one line; '' without a forecast."""
        comparison = compare_times(self.step_times, step, self.train_seconds)
        if comparison is None:
            return ""
        forecast, excess = comparison
        return tr(
            "planned {planned} at step {step}, took {took} ({more:+.0%}); evaluations {evaluated} more",
            planned=format_seconds(forecast.seconds),
            step=forecast.step,
            took=format_seconds(self.train_seconds),
            more=excess,
            evaluated=format_seconds(self.eval_seconds),
        )
