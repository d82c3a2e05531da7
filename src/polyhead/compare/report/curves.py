"""Charts of the page: loss over steps, time and FLOPs, and quality against cost; buttons choose one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import zip_longest

from polyhead.compare.io import ResultRow
from polyhead.compare.report.pareto import CostAxis, ParetoPoint, render_pareto_chart, select_cost_axes
from polyhead.compare.tasks.base import QualityMeasure
from polyhead.core.i18n import tr
from polyhead.viz.html_page import PageSection, json_script
from polyhead.viz.svg_charts import Curve, format_number, line_chart

_WIDE_CHART, _NARROW_CHART = (940, 400), (380, 300)
AXES = {"steps": "steps", "time": "minutes of training", "FLOPs": "training FLOPs, 10^12"}


def render_curves(done_rows: Sequence[ResultRow]) -> PageSection:
    """Validation loss over steps, time and FLOPs: three charts, one of them visible."""
    if not any(row["curves"] for row in done_rows):
        return PageSection(tr("Loss"), "", "")
    body = render_buttons({"over": list(AXES)})
    for number_of, (axis, label) in enumerate(AXES.items()):
        curves = trim_start([Curve(row["name"], average_curves(row, axis)) for row in done_rows])
        body += render_panel(axis, render_loss_plot(curves, tr(label)), hidden=number_of > 0)
    about = tr(
        "Of the validation text, at every evaluation; its first fall is left out. Point at the chart to read the values, "
        "at a name to find its curve."
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
        step, seconds, loss = (
            sum(column) / len(finite_points) for column in zip(*finite_points, strict=True)
        )
        x = {"steps": step, "time": seconds / 60, "FLOPs": step * flops_per_step(row) / 1e12}[axis]
        points.append((x, loss))
    return points


def flops_per_step(row: ResultRow) -> float:
    """FLOPs of one optimizer step."""
    return float(row["times_forward"] * row["flops_per_token"] * row["tokens"] / row["steps"])


def render_loss_plot(curves: Sequence[Curve], x_label: str) -> str:
    """Loss curves in two sizes, with a legend that shows values."""
    values = [[[float(f"{x:.5g}"), float(f"{y:.4g}")] for x, y in curve.points] for curve in curves]
    legend = "".join(
        f'<span class="key c{i}"><span class="badge">{i + 1}</span>{escape(curve.name)} '
        f"<output>{format_number(curve.points[-1][1])}</output></span>"
        for i, curve in enumerate(curves)
    )
    last = max(curve.points[-1][0] for curve in curves)
    charts = "".join(
        line_chart(curves, x_label, tr("validation loss"), *size) for size in (_WIDE_CHART, _NARROW_CHART)
    )
    return (
        f'<figure class="plot sizes many">{charts}<figcaption>{legend}<span class="at">{escape(x_label)} '
        f"<output>{format_number(last)}</output></span></figcaption>{json_script(values)}</figure>"
    )


def render_pareto(done_rows: Sequence[ResultRow], measures: Sequence[QualityMeasure]) -> PageSection:
    """Quality against each cost: one chart for every pair, one of them visible."""
    pairs = [(measure, cost) for measure in measures for cost in select_cost_axes(done_rows)]
    if len(done_rows) < 2 or not pairs:
        return PageSection(tr("Quality against cost"), "", "")
    body = render_buttons(
        {"quality": [m.title for m in measures], "cost": [c.title for c in select_cost_axes(done_rows)]}
    )
    for i, (measure, cost) in enumerate(pairs):
        dots = make_pareto_points(done_rows, measure, cost)
        charts = "".join(
            render_pareto_chart(dots, measure, cost, *size) for size in (_WIDE_CHART, _NARROW_CHART)
        )
        figure = f'<figure class="sizes still">{charts}</figure>'
        body += render_panel(f"{measure.title}|{cost.title}", figure, hidden=i > 0)
    about = tr(
        "Up and to the left is better. The line joins the designs that no other one beats in both; numbers are those of the table."
    )
    return PageSection(tr("Quality against cost"), about, f'<div class="chosen">{body}</div>')


def make_pareto_points(
    done_rows: Sequence[ResultRow], measure: QualityMeasure, cost: CostAxis
) -> list[ParetoPoint]:
    """Points of one chart, one per row."""
    return [
        ParetoPoint(
            i, row["name"], cost.get_value(row), row[measure.name], tuple(row[f"{measure.name}_interval"])
        )
        for i, row in enumerate(done_rows)
    ]


def render_buttons(groups: Mapping[str, Sequence[str]]) -> str:
    """Groups of toggle buttons; one button of each group is pressed."""
    html = ""
    for group, names in groups.items():
        buttons = "".join(
            f'<button type="button" data-value="{escape(name)}" aria-pressed="{"true" if i == 0 else "false"}">'
            f"{escape(tr(name))}</button>"
            for i, name in enumerate(names)
        )
        html += f'<div class="switch" role="group" aria-label="{escape(tr(group))}"><span>{escape(tr(group))}</span>{buttons}</div>'
    return f'<div class="switches">{html}</div>'


def render_panel(value: str, html: str, hidden: bool) -> str:
    """Panel that is visible while the buttons of its value are pressed."""
    return f'<div data-choice="{escape(value)}"{" hidden" if hidden else ""}>{html}</div>'
