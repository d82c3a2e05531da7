"""The charts of the page: loss over steps, time and FLOPs, and quality against cost; buttons choose the one that is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import zip_longest
from typing import Any

from polyhead.analysis.charts import Curve, line_chart, number
from polyhead.analysis.page import Section, data
from polyhead.compare.pareto import Cost, Dot, costs, pareto_chart
from polyhead.compare.tasks.base import Measure
from polyhead.core.i18n import tr

Row = Mapping[str, Any]
WIDE, NARROW = (940, 400), (380, 300)
AXES = {"steps": "steps", "time": "minutes of training", "FLOPs": "training FLOPs, 10^12"}


def curves(done: Sequence[Row]) -> Section:
    """Validation loss over steps, time and FLOPs: three charts, of which one is shown."""
    if not any(row["curves"] for row in done):
        return Section(tr("Loss"), "", "")
    body = choices({"over": list(AXES)})
    for number_of, (axis, label) in enumerate(AXES.items()):
        drawn = late([Curve(row["name"], points(row, axis)) for row in done])
        body += choice(axis, plot(drawn, tr(label)), hidden=number_of > 0)
    about = tr(
        "Of the validation text, at every evaluation; its first fall is left out. Point at the chart to read the values, "
        "at a name to find its curve."
    )
    return Section(tr("Loss"), about, f'<div class="chosen">{body}</div>')


def late(drawn: Sequence[Curve]) -> list[Curve]:
    """The curves without the steep beginning, whose scale would hide all differences."""
    ends = [curve.points[-1][1] for curve in drawn]
    highest = max(y for curve in drawn for _, y in curve.points)
    ceiling = min(ends) + max(0.3 * (highest - min(ends)), 1.3 * (max(ends) - min(ends)))
    return [Curve(c.name, [p for p in c.points if p[1] <= ceiling] or c.points[-1:]) for c in drawn]


def points(row: Row, axis: str) -> list[tuple[float, float]]:
    """The curve of a row, the mean over its seeds where these have the same steps."""
    found = []
    for several in zip_longest(*row["curves"]):
        there = [p for p in several if p is not None and p[2] is not None]
        if not there:
            continue
        step, seconds, loss = (sum(column) / len(there) for column in zip(*there, strict=True))
        x = {"steps": step, "time": seconds / 60, "FLOPs": step * flops_of_step(row) / 1e12}[axis]
        found.append((x, loss))
    return found


def flops_of_step(row: Row) -> float:
    """Of one update."""
    return float(row["times_forward"] * row["flops_per_token"] * row["tokens"] / row["steps"])


def plot(drawn: Sequence[Curve], x_label: str) -> str:
    """The curves in two sizes, with a legend that reads out values."""
    values = [[[float(f"{x:.5g}"), float(f"{y:.4g}")] for x, y in curve.points] for curve in drawn]
    legend = "".join(
        f'<span class="key c{i}"><span class="badge">{i + 1}</span>{escape(curve.name)} '
        f"<output>{number(curve.points[-1][1])}</output></span>"
        for i, curve in enumerate(drawn)
    )
    last = max(curve.points[-1][0] for curve in drawn)
    charts = "".join(line_chart(drawn, x_label, tr("validation loss"), *size) for size in (WIDE, NARROW))
    return (
        f'<figure class="plot sizes many">{charts}<figcaption>{legend}<span class="at">{escape(x_label)} '
        f"<output>{number(last)}</output></span></figcaption>{data(values)}</figure>"
    )


def pareto(done: Sequence[Row], measures: Sequence[Measure]) -> Section:
    """Quality against each cost: charts for every pair, of which one is shown."""
    pairs = [(measure, cost) for measure in measures for cost in costs(done)]
    if len(done) < 2 or not pairs:
        return Section(tr("Quality against cost"), "", "")
    body = choices({"quality": [m.title for m in measures], "cost": [c.title for c in costs(done)]})
    for i, (measure, cost) in enumerate(pairs):
        dots = dots_of(done, measure, cost)
        charts = "".join(pareto_chart(dots, measure, cost, *size) for size in (WIDE, NARROW))
        figure = f'<figure class="sizes still">{charts}</figure>'
        body += choice(f"{measure.title}|{cost.title}", figure, hidden=i > 0)
    about = tr(
        "Up and to the left is better. The line joins the designs that no other one beats in both; numbers are those of the table."
    )
    return Section(tr("Quality against cost"), about, f'<div class="chosen">{body}</div>')


def dots_of(done: Sequence[Row], measure: Measure, cost: Cost) -> list[Dot]:
    """The rows as points of one chart."""
    return [
        Dot(i, row["name"], cost.of(row), row[measure.name], tuple(row[f"{measure.name}_interval"]))
        for i, row in enumerate(done)
    ]


def choices(groups: Mapping[str, Sequence[str]]) -> str:
    """Buttons of which one in each group is pressed."""
    html = ""
    for group, names in groups.items():
        buttons = "".join(
            f'<button type="button" data-value="{escape(name)}" aria-pressed="{"true" if i == 0 else "false"}">'
            f"{escape(tr(name))}</button>"
            for i, name in enumerate(names)
        )
        html += f'<div class="switch" role="group" aria-label="{escape(tr(group))}"><span>{escape(tr(group))}</span>{buttons}</div>'
    return f'<div class="switches">{html}</div>'


def choice(value: str, html: str, hidden: bool) -> str:
    """What is shown while the buttons of this value are pressed."""
    return f'<div data-choice="{escape(value)}"{" hidden" if hidden else ""}>{html}</div>'
