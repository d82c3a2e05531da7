"""Charts of the page: loss over steps, time and FLOPs, and quality against cost; buttons choose one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import zip_longest
from typing import NamedTuple

from polyhead.compare.io import ResultRow
from polyhead.compare.tasks.base import QualityMeasure
from polyhead.core.i18n import tr
from polyhead.viz.html_page import PageSection
from polyhead.viz.plot import Curve, format_short, line_figure
from polyhead.viz.plots import ParetoChart, ParetoPoint, pareto_svg

_SIZES = (940, 400), (380, 300)  # for wide and for narrow screens
AXES = {"steps": "steps", "time": "minutes of training", "FLOPs": "training FLOPs, 10^12"}


class CostAxis(NamedTuple):
    """A cost: its title, its key in a row, and how its value is computed."""

    title: str
    key: str
    get_value: Callable[[ResultRow], float]


COST_AXES = (
    CostAxis("parameters", "parameters", lambda row: float(row["parameters"])),
    CostAxis("FLOPs", "flops_per_token", lambda row: float(row["flops_per_token"])),
    CostAxis("training, seconds", "seconds", lambda row: float(row["seconds"])),
    CostAxis(
        "decoding, µs per token", "decode_tokens_per_s", lambda row: 1e6 / float(row["decode_tokens_per_s"])
    ),
)


def render_curves(done_rows: Sequence[ResultRow]) -> PageSection:
    """Validation loss over steps, time and FLOPs: three charts, one of them visible."""
    if not any(row["curves"] for row in done_rows):
        return PageSection(tr("Loss"), "", "")
    body = render_buttons({"over": list(AXES)})
    for number_of, (axis, label) in enumerate(AXES.items()):
        curves = trim_start([Curve(row["name"], average_curves(row, axis)) for row in done_rows])
        figure = line_figure(
            tr("validation loss"), curves, tr(label), *_SIZES, kind="plot many", has_numbers=True
        )
        body += render_panel(axis, figure, hidden=number_of > 0)
    about = tr(
        "Validation text, at every evaluation, without the initial drop. Point at the chart to read the "
        "values, at a name to find its curve."
    )
    return PageSection(tr("Loss"), about, f'<div class="chosen">{body}</div>')


def trim_start(curves: Sequence[Curve]) -> list[Curve]:
    """Remove the steep start of the curves, whose scale would hide all differences."""
    ends = [curve.points[-1][1] for curve in curves]
    highest = max(y for curve in curves for _, y in curve.points)
    ceiling = min(ends) + max(0.3 * (highest - min(ends)), 1.3 * (max(ends) - min(ends)))
    return [Curve(c.name, [p for p in c.points if p[1] <= ceiling] or c.points[-1:]) for c in curves]


def average_curves(row: ResultRow, axis: str) -> list[tuple[float, float]]:
    """Mean curve of a row over its seeds, which have the same steps."""
    points = []
    for seed_points in zip_longest(*row["curves"]):
        finite_points = [p for p in seed_points if p is not None and p[2] is not None]
        if not finite_points:
            continue
        means = (sum(column) / len(finite_points) for column in zip(*finite_points, strict=True))
        step, seconds, loss = means
        x = {"steps": step, "time": seconds / 60, "FLOPs": step * flops_per_step(row) / 1e12}[axis]
        points.append((x, loss))
    return points


def flops_per_step(row: ResultRow) -> float:
    """FLOPs of one optimizer step."""
    return float(row["times_forward"] * row["flops_per_token"] * row["tokens"] / row["steps"])


def render_pareto(done_rows: Sequence[ResultRow], measures: Sequence[QualityMeasure]) -> PageSection:
    """Quality against each cost that every row has: one chart for every pair, one of them visible."""
    costs = [cost for cost in COST_AXES if all(row[cost.key] for row in done_rows)]
    pairs = [(measure, cost) for measure in measures for cost in costs]
    if len(done_rows) < 2 or not pairs:
        return PageSection(tr("Quality against cost"), "", "")
    body = render_buttons({"quality": [m.title for m in measures], "cost": [c.title for c in costs]})
    for i, (measure, cost) in enumerate(pairs):
        chart = make_pareto_chart(done_rows, measure, cost)
        charts = "".join(pareto_svg(chart, *size) for size in _SIZES)
        figure = f'<figure class="sizes still">{charts}</figure>'
        body += render_panel(f"{measure.title}|{cost.title}", figure, hidden=i > 0)
    about = tr(
        "Up and to the left is better. The line is the Pareto front: no other design is better in "
        "both; numbers are those of the table."
    )
    return PageSection(tr("Quality against cost"), about, f'<div class="chosen">{body}</div>')


def make_pareto_chart(done_rows: Sequence[ResultRow], measure: QualityMeasure, cost: CostAxis) -> ParetoChart:
    """One chart: a numbered point per row, with its 95 % interval."""
    points = [
        ParetoPoint(
            i, row["name"], cost.get_value(row), row[measure.name], tuple(row[f"{measure.name}_interval"])
        )
        for i, row in enumerate(done_rows)
    ]
    title = tr(measure.title)
    return ParetoChart(points, tr(cost.title), title, measure.lower_is_better, format_cost=format_short)


def render_buttons(groups: Mapping[str, Sequence[str]]) -> str:
    """Groups of toggle buttons; one button of each group is pressed."""
    html = ""
    for group, names in groups.items():
        buttons = "".join(
            f'<button type="button" data-value="{escape(name)}" '
            f'aria-pressed="{"true" if i == 0 else "false"}">'
            f"{escape(tr(name))}</button>"
            for i, name in enumerate(names)
        )
        html += (
            '<div class="switch" role="group" '
            f'aria-label="{escape(tr(group))}"><span>{escape(tr(group))}</span>{buttons}</div>'
        )
    return f'<div class="switches">{html}</div>'


def render_panel(value: str, html: str, hidden: bool) -> str:
    """Panel that is visible while the buttons of its value are pressed."""
    return f'<div data-choice="{escape(value)}"{" hidden" if hidden else ""}>{html}</div>'
