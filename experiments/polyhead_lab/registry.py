"""Registry of experiments, the context they run in, and their results: claims with verdicts, tables, plots.

Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from polyhead.core.errors import UserError
from polyhead.core.registry import Registry
from polyhead.viz.plot import Point

Points = Sequence[Point]
SeedValues = dict[str, list[float]]
"""Name of a design -> a value for every seed, or other repetition."""
TOY, TEXT = "toy task", "natural text"
SEEDS_NOTE = "One small dot per seed, a large one for the mean; the band is the 95 % interval of the mean."


class Claim(NamedTuple):
    """A claim of the literature, what was measured here, and whether the measurement supports it."""

    sentence: str
    source: str
    measurement: str
    is_supported: bool | None  # None: the measurement is inconclusive
    material: str = ""  # ``TOY`` or ``TEXT``, if models were trained for the verdict

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return {True: "held", False: "did not hold", None: "undecided"}[self.is_supported]

    @property
    def scope(self) -> str:
        """What follows the verdict: the material that it is limited to."""
        return f" ({self.material})" if self.material else ""


class ResultTable(NamedTuple):
    """Table of text and numbers with a header row."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | float | int]]
    caption: str = ""


class LinePlot(NamedTuple):
    """Curves over a quantity; ``log`` makes equal ratios of that quantity equal distances."""

    title: str
    x_label: str
    curves: Mapping[str, Points]
    caption: str = ""
    log: bool = False
    from_zero: bool = False


class DotPlot(NamedTuple):
    """Values of designs: one row per design, with one value for every seed (or other repetition)."""

    title: str
    x_label: str
    rows: SeedValues
    caption: str = ""


class ParetoPlot(NamedTuple):
    """Cost and error of choices, lower is better in both: families of points (name, cost, error).

    Both axes are logarithmic; an error below ``floor`` is considered rounding.
    """

    title: str
    x_label: str
    y_label: str
    families: Mapping[str, Sequence[tuple[str, float, float]]]
    caption: str = ""
    floor: float = 1e-7


class AttentionPlot(NamedTuple):
    """Attention map of one head over the words of a sentence: rows are queries, columns keys."""

    title: str
    words: Sequence[str]
    weights: Sequence[Sequence[float]]
    caption: str = ""


def mean_curves(by_name: Mapping[str, Mapping[int, Sequence[float]]]) -> dict[str, Points]:
    """A curve of means for each name, from its repetitions at each x."""
    return {name: [(x, fmean(y)) for x, y in by_x.items()] for name, by_x in by_name.items()}


Figure = LinePlot | DotPlot | ResultTable | ParetoPlot | AttentionPlot
_FIGURE_KINDS: dict[type, str] = {
    LinePlot: "plot",
    DotPlot: "dots",
    ResultTable: "table",
    ParetoPlot: "front",
    AttentionPlot: "attention",
}


@dataclass
class ExperimentResult:
    """Complete result of an experiment, in the order of its page."""

    title: str
    lead: str  # the question, in words for a student
    claims: list[Claim]
    figures: Sequence[Figure] = ()
    method: str = ""  # sizes, steps and seeds, to judge the result by

    def to_json(self) -> dict[str, Any]:
        """JSON-serialisable form; non-finite numbers are null."""
        claims = [{**claim._asdict(), "verdict": claim.verdict} for claim in self.claims]
        figures = [{"kind": _FIGURE_KINDS[type(figure)], **figure._asdict()} for figure in self.figures]
        for figure in figures:
            if "curves" in figure:
                curves = figure["curves"].items()
                figure["curves"] = [{"name": name, "points": points} for name, points in curves]
        rest = {"title": self.title, "lead": self.lead, "method": self.method}
        plain: dict[str, Any] = _to_jsonable({**rest, "claims": claims, "figures": figures})
        return plain


def _to_jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_jsonable(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_to_jsonable(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
