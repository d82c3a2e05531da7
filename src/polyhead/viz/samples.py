"""Sample outputs of a model on validation texts, and its errors by group, as saved in report.json."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from polyhead.introspect.attention_map import AttentionMap
from polyhead.viz.attention_page import map_to_json

LONGEST_GROUP_NAME = 60


class Group(NamedTuple):
    """A group of texts or tokens: its name, its size, and the metric over it."""

    name: str
    size: int
    value: float


class Breakdown(NamedTuple):
    """A metric by groups. ``measure`` and ``group_by`` are English texts that the page translates."""

    measure: str
    group_by: str
    groups: list[Group]


class Confusion(NamedTuple):
    """Confusion matrix: how often class i was predicted as class j. Rows are labels, columns predictions."""

    labels: list[str]
    counts: list[list[int]]


@dataclass
class Samples:
    """The examples, breakdowns and attention maps of one model.

    ``columns`` are the headings of source, output and reference. ``differences`` is how the page marks
    differences of output and reference: as pieces, as a whole, or not at all if the output need not equal the
    reference.
    """

    description: str = ""
    columns: tuple[str, str, str] = ("Source", "Output", "Reference")
    differences: Literal["pieces", "whole", "none"] = "pieces"
    examples: list[dict[str, Any]] = field(default_factory=list)
    breakdowns: list[Breakdown] = field(default_factory=list)
    confusion: Confusion | None = None
    attention: list[AttentionMap] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "about": self.description,
            "columns": list(self.columns),
            "differences": self.differences,
            "examples": self.examples,
            "breakdowns": [
                {**b._asdict(), "groups": [group._asdict() for group in b.groups]} for b in self.breakdowns
            ],
            "confusion": self.confusion and self.confusion._asdict(),
            "attention": [map_to_json(attention) for attention in self.attention],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Samples:
        """The inverse of ``to_json``; weights of attention are rounded to thousandths."""
        confusion = body.get("confusion")
        return cls(
            description=body.get("about", ""),
            columns=tuple(body.get("columns", cls.columns)),
            differences=body.get("differences", cls.differences),
            examples=list(body.get("examples", [])),
            breakdowns=[
                Breakdown(b["measure"], b["group_by"], [Group(**group) for group in b["groups"]])
                for b in body.get("breakdowns", [])
            ],
            confusion=Confusion(**confusion) if confusion else None,
            attention=[_parse_map(map_body) for map_body in body.get("attention", [])],
        )


def _parse_map(body: Mapping[str, Any]) -> AttentionMap:
    weights = [[[[w / 1000 for w in row] for row in head] for head in layer] for layer in body["weights"]]
    return AttentionMap(body["source"], body["target"], weights, body["kind"], body["title"], body["layers"])


def group_by_length(lengths: Sequence[int], max_groups: int = 4) -> dict[str, list[int]]:
    """Group indices by length into up to ``max_groups`` groups of about equal size, from short to long.

    Equal lengths are in the same group.
    """
    if not lengths:
        return {}
    ordered = sorted(lengths)
    edges = sorted({ordered[-(-len(ordered) * (i + 1) // max_groups) - 1] for i in range(max_groups)})
    buckets: list[list[int]] = [[] for _ in edges]
    for index, length in enumerate(lengths):
        buckets[bisect_left(edges, length)].append(index)
    groups = {}
    for indices in buckets:
        low, high = (pick(lengths[index] for index in indices) for pick in (min, max))
        groups[f"{low}" if low == high else f"{low}–{high}"] = indices
    return groups


def group_by_name(names: Iterable[str]) -> dict[str, list[int]]:
    """Indices by name, in the order of first occurrence."""
    groups: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        groups.setdefault(name[:LONGEST_GROUP_NAME], []).append(index)
    return groups


def break_down(
    measure: str, group_by: str, groups: Mapping[str, list[int]], value: Callable[[list[int]], float]
) -> Breakdown:
    """Compute the metric of each group of indices."""
    results = [
        Group(name, len(indices), float(value(indices))) for name, indices in groups.items() if indices
    ]
    return Breakdown(measure, group_by, results)


def spread_by_length(texts: Sequence[str], count: int) -> list[int]:
    """``count`` indices at equal distances from short to long; the choice does not depend on outputs."""
    order = sorted(range(len(texts)), key=lambda index: (len(texts[index]), texts[index]))
    count = min(count, len(order))
    return [order[(2 * i + 1) * len(order) // (2 * count)] for i in range(count)]
