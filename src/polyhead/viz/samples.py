"""Sample outputs of a model on validation texts, and its errors by group, as saved in report.json."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal, NamedTuple

from pydantic import FiniteFloat, NonNegativeInt, TypeAdapter

from polyhead.core.i18n import tr
from polyhead.evaluate.metrics import SHORT_TEXT_METRIC
from polyhead.introspect.attention_map import AttentionMap, layer_numbers, nested_weights
from polyhead.viz.attention_page import map_to_json
from polyhead.viz.html_page import PageSection, scroll_region
from polyhead.viz.plot import format_number

LONGEST_GROUP_NAME = 60


class Group(NamedTuple):
    """A group of texts or tokens: its name, its size, and the metric over it."""

    name: str
    size: int
    value: FiniteFloat


class Breakdown(NamedTuple):
    """A metric by groups. ``measure`` and ``group_by`` are English texts that the page translates."""

    measure: str
    group_by: str
    groups: list[Group]


class Confusion(NamedTuple):
    """Confusion matrix: how often class i was predicted as class j. Rows are labels, columns predictions."""

    labels: list[str]
    counts: list[list[NonNegativeInt]]


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
    examples: list[dict[str, str]] = field(default_factory=list)
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
        """The inverse of ``to_json``; weights of attention are rounded to thousandths.

        What is no such JSON is a ValueError, TypeError, LookupError or AttributeError.
        """
        fields = {("description" if key == "about" else key): value for key, value in body.items()}
        maps = [_parse_map(map_body) for map_body in body.get("attention", [])]
        samples = _SAMPLES.validate_python(fields | {"attention": maps})
        for attention in samples.attention:
            layer_numbers(attention, len(nested_weights(attention)))
        if any({"source", "output", "reference"} - example.keys() for example in samples.examples):
            raise ValueError("an example lacks a text")
        if (confusion := samples.confusion) and {len(confusion.labels)} != {
            len(confusion.counts),
            *map(len, confusion.counts),
        }:
            raise ValueError("the confusion matrix is not square")
        return samples


_SAMPLES = TypeAdapter(Samples)


def _parse_map(body: Mapping[str, Any]) -> tuple[Any, ...]:
    """The fields of an attention map."""
    weights = [[[[w / 1000 for w in row] for row in head] for head in layer] for layer in body["weights"]]
    fields = body["source"], body["target"], weights, body["kind"], body["title"], body["layers"]
    return *fields, body.get("rows", ())


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


_VISIBLE_EXAMPLES = 12  # examples shown at once; the rest is collapsed
_WORD = re.compile(r"\s+|[A-Za-z0-9À-ɏͰ-ӿ]+(?:['’-][A-Za-z0-9À-ɏͰ-ӿ]+)*|.", re.DOTALL)


def examples_section(samples: Samples) -> PageSection:
    """Outputs and references; differences are coloured."""
    if not samples.examples:
        return PageSection("", "", "")
    n_equal = sum(example["output"] == example["reference"] for example in samples.examples)
    lead = [tr(samples.description)]
    if samples.differences == "pieces":
        total = len(samples.examples)
        lead.append(tr("{right} of these {total} equal their reference.", right=n_equal, total=total))
        lead.append(tr("Red: only in the output. Green: only in the reference."))
    visible, hidden = samples.examples[:_VISIBLE_EXAMPLES], samples.examples[_VISIBLE_EXAMPLES:]
    if samples.differences == "pieces":  # examples are sorted by length: show some of each length
        step = -(-len(samples.examples) // _VISIBLE_EXAMPLES)
        visible = samples.examples[::step]
        hidden = [example for i, example in enumerate(samples.examples) if i % step]
    body = examples_table(samples, visible)
    if hidden:
        summary = escape(tr("{count} more examples", count=len(hidden)))
        body += f"<details><summary>{summary}</summary>{examples_table(samples, hidden)}</details>"
    return PageSection(tr("Examples"), " ".join(lead), body)


def examples_table(samples: Samples, examples: Sequence[Mapping[str, Any]]) -> str:
    """Examples as a table; on a narrow screen each is a block."""
    columns = [escape(tr(name)) for name in samples.columns]
    has_marks = samples.differences != "none"
    mark = f'<th><span class="unseen">{escape(tr("equal"))}</span></th>' if has_marks else ""
    head = mark + "".join(f'<th scope="col">{name}</th>' for name in columns)
    rows = "".join(example_row(samples, example, columns) for example in examples)
    table = f'<table class="examples"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return scroll_region(table, tr("Examples"))


def example_row(samples: Samples, example: Mapping[str, Any], columns: Sequence[str]) -> str:
    """One example as a table row."""
    output, reference = str(example["output"]), str(example["reference"])
    equal = output == reference
    sides = escape(output), escape(reference)
    if not equal and samples.differences == "pieces":
        sides = mark_words(output, reference, "del"), mark_words(reference, output, "ins")
    elif not equal and samples.differences == "whole":
        sides = f"<del>{sides[0]}</del>", f"<ins>{sides[1]}</ins>"
    if note := example.get("note"):
        sides = f'{sides[0]} <small class="note">{escape(str(note))}</small>', sides[1]
    cells = "".join(
        f'<td data-name="{name}" dir="auto">{html}</td>'
        for name, html in zip(columns, (escape(str(example["source"])), *sides), strict=True)
    )
    if samples.differences == "none":
        return f"<tr>{cells}</tr>"
    sign, word, kind = ("✓", tr("equal"), "yes") if equal else ("✗", tr("different"), "no")
    mark = f'<span class="{kind}" role="img" aria-label="{escape(word)}" title="{escape(word)}">{sign}</span>'
    return f'<tr class="{"right" if equal else "wrong"}"><td class="mark">{mark}</td>{cells}</tr>'


def mark_words(text: str, other: str, element: str) -> str:
    """The escaped text, with the words that the other text lacks marked.

    In scripts without spaces, words are characters.
    """
    words, other_words = _WORD.findall(text), _WORD.findall(other)
    pieces = difflib.SequenceMatcher(None, words, other_words, autojunk=False).get_opcodes()
    return "".join(
        escape("".join(words[a:b])) if kind == "equal" else f"<{element}>{escape(''.join(words[a:b]))}</"
            f"{element}>"
        for kind, a, b, _, _ in pieces
        if a < b
    )  # fmt: skip


def breakdown_section(samples: Samples) -> PageSection:
    """Metrics by length, class or kind as bars, and the confusion matrix."""
    body = "".join(bars_html(breakdown) for breakdown in samples.breakdowns if breakdown.groups)
    if samples.confusion:
        body += confusion_html(samples.confusion)
    return PageSection(tr("Errors by group"), "", f'<div class="groups">{body}</div>' if body else "")


def bars_html(breakdown: Breakdown) -> str:
    """One bar per group, with the value and the size."""
    top = (
        100.0
        if "%" in breakdown.measure or breakdown.measure == SHORT_TEXT_METRIC.label
        else max(group.value for group in breakdown.groups)
    )
    rows = "".join(
        f'<tr><th scope="row" dir="auto">{escape(tr(group.name))}</th>'
        f'<td class="bar"><i style="width:{100 * group.value / (top or 1):.1f}%"></i></td>'
        f"<td>{format_number(float(f'{group.value:.4g}'))}</td><td>{group.size:,}</td></tr>"
        for group in breakdown.groups
    )
    measure, group_by, count = tr(breakdown.measure), tr(breakdown.group_by), tr("number")
    caption = tr("{measure} by {by}", measure=measure, by=group_by)
    head = (
        f'<tr><th scope="col">{escape(group_by)}</th><td></td><th scope="col">{escape(measure)}</th>'
        f'<th scope="col">{escape(count)}</th></tr>'
    )
    return (
        f'<table class="bars"><caption>{escape(caption)}</caption><thead>{head}</thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def confusion_html(confusion: Confusion) -> str:
    """A row per label, a column per prediction; a stronger colour is a larger share of the row."""
    head = "".join(f'<th scope="col" dir="auto">{escape(label)}</th>' for label in confusion.labels)
    rows = ""
    for i, (label, counts) in enumerate(zip(confusion.labels, confusion.counts, strict=True)):
        cells = "".join(
            f'<td class="{"same" if i == j else "other"}" '
            f'style="--share:{count / (sum(counts) or 1):.3f}">{count:,}</td>'
            for j, count in enumerate(counts)
        )
        rows += f'<tr><th scope="row" dir="auto">{escape(label)}</th>{cells}</tr>'
    caption = tr("Confusion matrix: rows are labels, columns predictions")
    head = f'<tr><th scope="col">{escape(tr("label"))}</th>{head}</tr>'
    table = f'<table class="confusion"><thead>{head}</thead><tbody>{rows}</tbody></table>'
    return scroll_region(f'<p class="caption">{escape(caption)}</p>{table}', caption)
