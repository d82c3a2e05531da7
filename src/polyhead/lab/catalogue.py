"""The experiments by name, and the conditions one is run under."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from polyhead.errors import UserError
from polyhead.lab.result import Result
from polyhead.registry import Registry

T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """Where an experiment is run: how large, from which seed, on whose model and text, and who hears how it goes."""

    seed: int = 1
    quick: bool = False
    say: Callable[[str], None] = field(default=lambda line: None, repr=False)
    # a trained run, for experiments on one's own model; without it they train a small one
    run: Path | None = None
    text: tuple[Path, ...] = ()  # files for it
    limit: int | None = None  # of its texts, the first ones
    out: Path | None = None  # where what is worth keeping besides the page may be left

    def size(self, full: T, quick: T) -> T:
        """A size of the experiment: the full one, or the one that only shows that it runs."""
        return quick if self.quick else full

    def seeds(self, n: int) -> list[int]:
        """n seeds for repetitions; two in a quick run, the least that has a spread."""
        return [self.seed + i for i in range(self.size(n, min(n, 2)))]


Experiment = Callable[[Bench], Result]

LAB: Registry[Experiment] = Registry("experiment", "polyhead.lab")
ON_A_RUN: set[Experiment] = set()


def on_a_run(experiment: Experiment) -> Experiment:
    """Mark an experiment that can be made on a run and a text of one's own."""
    ON_A_RUN.add(experiment)
    return experiment


def check_own(names: Sequence[str], bench: Bench) -> None:
    """Refuse a model or text that an experiment has no use for, or the one without the other."""
    if bench.run is None and not bench.text and bench.limit is None:
        return
    if unfit := [name for name in names if LAB.get(name) not in ON_A_RUN]:
        able = ", ".join(name for name in LAB.names() if LAB.get(name) in ON_A_RUN)
        raise UserError(
            f"--run, --text and --limit: experiment {unfit[0]!r} makes its own models and text; for yours there are: {able}"
        )
    if bench.run is None:
        raise UserError(
            f"{'--text' if bench.text else '--limit'} says what to measure a run on: give it, --run RUN"
        )
    if not bench.text:
        raise UserError(
            f"--run {bench.run}: on what text? give --text FILE, of a translator source and target: --text A --text B"
        )


def question(name: str) -> str:
    """What an experiment is about: the first line of its docstring."""
    return (LAB.get(name).__doc__ or "").strip().splitlines()[0]
