"""Result of an experiment: claims with verdicts, and their tables and plots. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from polyhead.viz.plot import Curve

SEEDS_NOTE = "One small dot per seed, a large one for the mean; the band is the 95 % interval of the mean."


class Claim(NamedTuple):
    """A claim of the literature, what was measured here, and whether the measurement supports it."""

    sentence: str
    source: str
    measurement: str
    is_supported: bool | None  # None: the measurement is inconclusive

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return {True: "held", False: "did not hold", None: "undecided"}[self.is_supported]


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
    curves: Sequence[Curve]
    caption: str = ""
    log: bool = False
    from_zero: bool = False


class DotPlot(NamedTuple):
    """Values of designs: one row per design, with one value for every seed (or other repetition)."""

    title: str
    x_label: str
    rows: Mapping[str, Sequence[float]]
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


def mean_curves(by_name: Mapping[str, Mapping[int, Sequence[float]]]) -> list[Curve]:
    """A curve of means for each name, from its repetitions at each x."""
    return [Curve(name, [(x, fmean(y)) for x, y in by_x.items()]) for name, by_x in by_name.items()]


Figure = LinePlot | DotPlot | ResultTable | ParetoPlot
_FIGURE_KINDS: dict[type, str] = {
    LinePlot: "plot",
    DotPlot: "dots",
    ResultTable: "table",
    ParetoPlot: "front",
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
        rest = {"title": self.title, "lead": self.lead, "method": self.method}
        plain: dict[str, Any] = _to_jsonable({**rest, "claims": claims, "figures": figures})
        return plain


def _to_jsonable(value: Any) -> Any:
    if isinstance(value, Curve):
        return {"name": value.name, "points": _to_jsonable(value.points)}
    if isinstance(value, Mapping):
        return {str(key): _to_jsonable(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_to_jsonable(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
