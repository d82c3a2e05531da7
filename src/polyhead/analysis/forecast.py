"""How long a training will take, predicted by its first steps: from the steps and seconds in its metrics."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from polyhead.core.i18n import tr

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


def compare_times(ticks: Sequence[Tick], step: int, seconds: float) -> tuple[Forecast, float] | None:
    """What was predicted for the steps that were done, and by what share they took longer."""
    predicted = forecast(ticks, step)
    return predicted and (predicted, seconds / max(predicted.seconds, 1e-9) - 1)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return tr("{hours} h {minutes:02} min", hours=hours, minutes=minutes)
    if minutes:
        return tr("{minutes} min {seconds:02} s", minutes=minutes, seconds=seconds)
    return tr("{seconds} s", seconds=seconds)
