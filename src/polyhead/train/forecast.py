"""How long training will take, told by its first steps, and at the end what it took."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from polyhead.core.i18n import tr
from polyhead.train.reporting import Reporter, Row, duration

LEAST = 20  # steps that a prediction is made from, behind those of the first row, which warm up


class Tick(NamedTuple):
    """A step, and the seconds of learning until it was done; evaluations are left out, checkpoints are not."""

    step: int
    seconds: float


class Forecast(NamedTuple):
    """What was predicted, and when."""

    seconds: float
    at: int  # step


def forecast(ticks: Sequence[Tick], steps: int) -> Forecast | None:
    """Seconds of so many steps by the speed between the first tick and one of the next; None where that is no prediction.

    It is none from what lies in the second half.
    """
    for tick in ticks[1:]:
        done = tick.step - ticks[0].step
        if done >= LEAST:
            left = (steps - tick.step) * (tick.seconds - ticks[0].seconds) / done
            return Forecast(tick.seconds + left, tick.step) if 2 * tick.step <= steps else None
    return None


def seconds_at(ticks: Sequence[Tick], step: int) -> float:
    """The seconds until a step, in between of two ticks by proportion."""
    known = [Tick(0, 0.0), *ticks]
    after = bisect.bisect_left(known, step, key=lambda tick: tick.step)
    if after >= len(known):  # past the last tick: at the mean speed until then
        last = known[-1]
        return last.seconds * step / last.step if last.step else 0.0
    a, b = known[max(after - 1, 0)], known[after]
    return (
        b.seconds
        if b.step == a.step
        else a.seconds + (b.seconds - a.seconds) * (step - a.step) / (b.step - a.step)
    )


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
        predicted = forecast(self.ticks, step)
        if predicted is None:
            return ""
        more = self.seconds / max(predicted.seconds, 1e-9) - 1
        return tr(
            "planned {planned} at step {step}, took {took} ({more:+.0%}); evaluations {evaluated} more",
            planned=duration(predicted.seconds),
            step=predicted.at,
            took=duration(self.seconds),
            more=more,
            evaluated=duration(self.evaluated),
        )
