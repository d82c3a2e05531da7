"""What a model says of a few validation texts, and where it errs: kept in a run's report.json for its page."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from polyhead.analysis.attention_page import plain
from polyhead.analysis.heat_map import AttentionMap

LONGEST_GROUP_NAME = 60


class Group(NamedTuple):
    """Some of the texts or tokens: what they share, how many they are, and the measure over them."""

    name: str
    size: int
    value: float


class Breakdown(NamedTuple):
    """A measure by groups. ``measure`` and ``by`` are English texts that the page translates."""

    measure: str
    by: str
    groups: list[Group]


class Confusion(NamedTuple):
    """How often class i was taken for class j: rows are the labels, columns the predictions."""

    labels: list[str]
    counts: list[list[int]]


@dataclass
class Samples:
    """The examples, breakdowns and attention maps of one model.

    ``columns`` are the headings of source, output and reference. ``differences`` says what the page marks where
    output and reference differ: the pieces, the whole, or nothing where the output need not equal the reference.
    """

    about: str = ""
    columns: tuple[str, str, str] = ("Source", "Output", "Reference")
    differences: Literal["pieces", "whole", "none"] = "pieces"
    examples: list[dict[str, Any]] = field(default_factory=list)
    breakdowns: list[Breakdown] = field(default_factory=list)
    confusion: Confusion | None = None
    attention: list[AttentionMap] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "about": self.about,
            "columns": list(self.columns),
            "differences": self.differences,
            "examples": self.examples,
            "breakdowns": [
                {**b._asdict(), "groups": [group._asdict() for group in b.groups]} for b in self.breakdowns
            ],
            "confusion": self.confusion and self.confusion._asdict(),
            "attention": [plain(attention) for attention in self.attention],
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Samples:
        """The inverse of ``to_json``; weights of attention are rounded to thousandths."""
        confusion = saved.get("confusion")
        return cls(
            about=saved.get("about", ""),
            columns=tuple(saved.get("columns", cls.columns)),
            differences=saved.get("differences", cls.differences),
            examples=list(saved.get("examples", [])),
            breakdowns=[
                Breakdown(b["measure"], b["by"], [Group(**group) for group in b["groups"]])
                for b in saved.get("breakdowns", [])
            ],
            confusion=Confusion(**confusion) if confusion else None,
            attention=[_read_map(one) for one in saved.get("attention", [])],
        )


def _read_map(saved: Mapping[str, Any]) -> AttentionMap:
    weights = [[[[w / 1000 for w in row] for row in head] for head in layer] for layer in saved["weights"]]
    return AttentionMap(
        saved["source"], saved["target"], weights, saved["kind"], saved["title"], saved["layers"]
    )


def group_by_length(lengths: Sequence[int], most: int = 4) -> dict[str, list[int]]:
    """Indices in up to ``most`` groups of about equal size, from short to long; equal lengths share a group."""
    if not lengths:
        return {}
    ordered = sorted(lengths)
    edges = sorted({ordered[-(-len(ordered) * (i + 1) // most) - 1] for i in range(most)})
    found: list[list[int]] = [[] for _ in edges]
    for index, length in enumerate(lengths):
        found[bisect_left(edges, length)].append(index)
    groups = {}
    for indices in found:
        low, high = (pick(lengths[index] for index in indices) for pick in (min, max))
        groups[f"{low}" if low == high else f"{low}–{high}"] = indices
    return groups


def group_by_name(names: Iterable[str]) -> dict[str, list[int]]:
    """Indices by name, in the order of the first of each."""
    groups: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        groups.setdefault(name[:LONGEST_GROUP_NAME], []).append(index)
    return groups


def break_down(
    measure: str, by: str, groups: Mapping[str, list[int]], value: Callable[[list[int]], float]
) -> Breakdown:
    """The measure of each group of indices."""
    found = [Group(name, len(indices), float(value(indices))) for name, indices in groups.items() if indices]
    return Breakdown(measure, by, found)


def spread_by_length(texts: Sequence[str], count: int) -> list[int]:
    """``count`` indices, evenly from short to long: chosen by the texts alone, so that no output can sway the choice."""
    order = sorted(range(len(texts)), key=lambda index: (len(texts[index]), texts[index]))
    count = min(count, len(order))
    return [order[(2 * i + 1) * len(order) // (2 * count)] for i in range(count)]
