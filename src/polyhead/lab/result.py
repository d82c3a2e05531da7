"""What an experiment found: claims with their verdicts, and the tables and plots they rest on. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from polyhead.analysis.charts import Curve

SEEDS = "A small dot a seed, a large one their mean; the band is the 95 % interval of the mean."


class Claim(NamedTuple):
    """A sentence of the literature, what was measured here, and whether that bears it out."""

    sentence: str
    source: str
    measured: str
    held: bool | None  # None: what was measured decides it neither way

    @property
    def verdict(self) -> str:
        """The verdict as a word."""
        return {True: "held", False: "did not hold", None: "undecided"}[self.held]


class Table(NamedTuple):
    """Rows of text and numbers under a head."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | float | int]]
    about: str = ""


class Plot(NamedTuple):
    """Curves over a quantity; ``log`` makes equal ratios of that quantity equal distances."""

    title: str
    x_label: str
    curves: Sequence[Curve]
    about: str = ""
    log: bool = False
    from_zero: bool = False


class Dots(NamedTuple):
    """Designs beside each other: a row each, with one value for every seed (or other repetition)."""

    title: str
    x_label: str
    rows: Mapping[str, Sequence[float]]
    about: str = ""


class Front(NamedTuple):
    """What each choice costs and how far off it is, less is better in both: families of points (name, cost, error).

    Both axes are logarithmic; an error below ``floor`` is no error but rounding.
    """

    title: str
    x_label: str
    y_label: str
    families: Mapping[str, Sequence[tuple[str, float, float]]]
    about: str = ""
    floor: float = 1e-7


Figure = Plot | Dots | Table | Front


@dataclass
class Result:
    """All that an experiment has to say, in the order in which a reader wants it."""

    title: str
    lead: str  # the question, in words for a student
    claims: list[Claim]
    figures: Sequence[Figure] = ()
    method: str = ""  # sizes, steps, seeds: what one needs to know to judge it

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON can hold it; a value that is no number is null."""
        claims = [{**claim._asdict(), "verdict": claim.verdict} for claim in self.claims]
        figures = [{"kind": type(figure).__name__.lower(), **figure._asdict()} for figure in self.figures]
        rest = {"title": self.title, "lead": self.lead, "method": self.method}
        plain: dict[str, Any] = _plain({**rest, "claims": claims, "figures": figures})
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Curve):
        return {"name": value.name, "points": _plain(value.points)}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
