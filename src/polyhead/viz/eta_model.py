"""Predict the duration of a training run from the steps and seconds in its metrics."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from polyhead.core.i18n import tr

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
