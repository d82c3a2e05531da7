"""Registry of experiments, and the context they run in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from polyhead.core.errors import UserError
from polyhead.core.registry import Registry
from polyhead_lab.result import ExperimentResult

T = TypeVar("T")


@dataclass(frozen=True)
class LabContext:
    """Context of an experiment: its size, the first seed, a user's run and text, and a progress callback."""

    seed: int = 1
    quick: bool = False
    info: Callable[[str], None] = field(default=lambda line: None, repr=False)
    # a user's trained run; None: experiments train a small model
    run: Path | None = None
    text: tuple[Path, ...] = ()  # text files for the run
    limit: int | None = None  # number of texts to use, the first ones
    out: Path | None = None  # directory for files other than the page

    def pick_size(self, full: T, quick: T) -> T:
        """The full size, or in a quick run the small one, which only checks that the experiment runs."""
        return quick if self.quick else full

    def make_seeds(self, n: int) -> list[int]:
        """``n`` seeds for repetitions; in a quick run at most two, the minimum for a spread."""
        return [self.seed + i for i in range(self.pick_size(n, min(n, 2)))]


Experiment = Callable[[LabContext], ExperimentResult]

EXPERIMENTS: Registry[Experiment] = Registry("experiment", "polyhead_lab")
_RUN_EXPERIMENTS: set[Experiment] = set()


def mark_accepts_run(experiment: Experiment) -> Experiment:
    """Mark an experiment that accepts a user's run and text."""
    _RUN_EXPERIMENTS.add(experiment)
    return experiment


def check_run_options(names: Sequence[str], lab: LabContext) -> None:
    """Reject a run or a text that an experiment does not accept, or one without the other."""
    if lab.run is None and not lab.text and lab.limit is None:
        return
    if unsupported := [name for name in names if EXPERIMENTS.get(name) not in _RUN_EXPERIMENTS]:
        supported = ", ".join(
            name for name in EXPERIMENTS.names() if EXPERIMENTS.get(name) in _RUN_EXPERIMENTS
        )
        raise UserError(
            f"--run, --text and --limit: experiment {unsupported[0]!r} uses its own models and "
            f"text; experiments for your own run: {supported}"
        )
    if lab.run is None:
        raise UserError(f"{'--text' if lab.text else '--limit'} requires --run RUN")
    if not lab.text:
        raise UserError(
            f"--run {lab.run}: requires --text FILE; for a translation model source and target: "
            "--text A --text B"
        )


def describe_experiment(name: str) -> str:
    """First line of an experiment's docstring."""
    return (EXPERIMENTS.get(name).__doc__ or "").strip().splitlines()[0]
