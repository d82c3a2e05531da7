"""Comparison as a self-contained HTML page: tables, charts with buttons, and all recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from polyhead.compare.io import ResultRow, ResultRows
from polyhead.compare.plan import ComparisonPlan
from polyhead.compare.report import text_table
from polyhead.compare.report.text_table import describe_row
from polyhead.compare.results import baseline_rows, comparable_measures, describe_unlearned, is_unlearned
from polyhead.compare.tasks.base import Measures, QualityMeasure
from polyhead.core.i18n import tr
from polyhead.viz.html_page import (
    PageSection,
    in_both_languages,
    read_asset,
    render_html,
    save_page,
    scroll_region,
)
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


def render_curves(done_rows: ResultRows) -> PageSection:
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


def render_pareto(done_rows: ResultRows, measures: Measures) -> PageSection:
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


def make_pareto_chart(done_rows: ResultRows, measure: QualityMeasure, cost: CostAxis) -> ParetoChart:
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


def render_quality_table(done_rows: ResultRows, plan: ComparisonPlan) -> PageSection:
    """Quality of each design, with intervals drawn on a common scale."""
    if not done_rows:
        return PageSection(tr("Quality"), "", "")
    many = len(plan.seeds) > 1
    measures = plan.task.measures
    spans = {}  # ranges that contain all intervals of a metric
    for measure in measures:
        ends = [end for row in done_rows for end in row[f"{measure.name}_interval"]]
        spans[measure.name] = min(ends), max(ends)
    base = next((row for row in done_rows if row["base"]), None)
    of_tokens = measures[0].is_per_token
    head = ["Design", "Loss", *(["Perplexity"] if of_tokens else []), "95 %", "p"]
    head += [title for measure in measures[1:] for title in (measure.column, "95 %", "p")]
    lines = []
    for i, row in enumerate(done_rows):
        cells = [render_name_cell(i, row, find_report(row, plan))]
        for measure in measures:
            name, digits = measure.name, measure.digits
            spread = row[f"{name}_spread"]
            plus = f"<small>±{spread:.{digits}f}</small>" if many and spread is not None else ""
            cells.append(f"<td>{row[name]:.{digits}f}{plus}</td>")
            if name == "loss" and of_tokens:
                cells.append(f"<td>{row['ppl']:.2f}</td>")
            cells.append(f"<td>{render_range_bar(row, measure, spans[name], base)}</td>")
            cells.append(render_p_cell(row, measure, base))
        lines.append(f'<tr class="row c{i}{" base" if row["base"] else ""}">{"".join(cells)}</tr>')
    lines += [render_baseline_row(row, measures) for row in baseline_rows(done_rows, measures)]
    return PageSection(
        tr("Quality"),
        describe_quality_table(done_rows[0]["split"], plan),
        render_table(tr("Quality"), head, lines),
    )


def describe_quality_table(split: str, plan: ComparisonPlan) -> str:
    """Caption of the quality table: the meaning of its columns and how intervals are computed."""
    losses, *other_metrics = plan.task.measures
    *first, last = (tr(measure.column) for measure in other_metrics)
    return tr(" ").join(
        [
            tr("Loss and perplexity are per token of the validation text.")
            if losses.is_per_token
            else tr("Loss is the mean over the validation texts."),
            tr(
                "{measures}: on the test text." if split == "test" else "{measures}: on the validation text.",
                measures=tr(" and ").join([", ".join(first), last] if first else [last]),
            ),
            tr(
                "Bars are 95 % intervals of 1,000 bootstrap resamples of the {units}, the line is the base.",
                units=tr(plan.task.page_words.unit),
            ),
            tr(
                "p is the chance of a difference from the base as large, by a paired test of the {units}.",
                units=tr(plan.task.page_words.unit),
            ),
            tr("± is the standard deviation over the seeds.")
            if len(plan.seeds) > 1
            else tr("With one seed the variance over seeds is unknown."),
        ]
    )


def render_baseline_row(row: ResultRow, measures: Measures) -> str:
    """Table row with the baselines of all metrics."""
    cells = [f'<th scope="row"><div class="who"><span>{escape(row["name"])}</span></div></th>']
    for measure in measures:
        values = [(row[measure.name], measure.digits)]
        if measure.name == "loss" and measure.is_per_token:
            values.append((row["ppl"], 2))
        cells += [f"<td>{'' if value is None else f'{value:.{digits}f}'}</td>" for value, digits in values]
        cells.append("<td></td><td></td>")
    return f'<tr class="soft">{"".join(cells)}</tr>'


def render_range_bar(
    row: ResultRow, measure: QualityMeasure, span: tuple[float, float], base: ResultRow | None
) -> str:
    """Interval as a bar on the scale that all rows share."""
    name, digits = measure.name, measure.interval_digits
    width = (span[1] - span[0]) or 1.0

    def to_percent(value: float) -> str:
        return f"{100 * (value - span[0]) / width:.1f}%"

    low, high = row[f"{name}_interval"]
    line = f'<u style="left:{to_percent(base[name])}"></u>' if base else ""
    return (
        '<span class="range" '
        f'title="{tr("{low} to {high}", low=f"{low:.{digits}f}", high=f"{high:.{digits}f}")}">{line}'
        f'<i style="left:{to_percent(low)};right:calc(100% - {to_percent(high)})"></i><b '
        f'style="left:{to_percent(row[name])}"></b></span>'
    )


def render_p_cell(row: ResultRow, measure: QualityMeasure, base: ResultRow | None) -> str:
    """Cell with the p-value of a difference, coloured by its direction if below 0.05."""
    name = measure.name
    p = row[f"{name}_p"]
    if p is None or base is None:
        return f'<td class="soft">{tr("base")}</td>' if row["base"] else "<td></td>"
    better = (row[name] < base[name]) == measure.lower_is_better
    look = ("better" if better else "worse") if p < 0.05 else "soft"
    return f'<td class="{look}">{p:.3f}</td>'


def render_cost_table(done_rows: ResultRows, plan: ComparisonPlan) -> PageSection:
    """Cost of each design; the bar of a number is its share of the largest one."""
    words = plan.task.page_words
    columns = [
        column
        for column in text_table.list_cost_columns(words.counted_unit)
        if text_table.has_values(done_rows, column.format_cell)
    ]
    largest = {key: max((row[key] or 0 for row in done_rows), default=0) for _, _, key, _ in columns if key}
    has_cache = any(column.key == "cache_per_token" for column in columns)
    lines = []
    for i, row in enumerate(done_rows):
        cells = [render_name_cell(i, row)]
        for _, _, key, show in columns:
            share = (row[key] or 0) / largest[key] if key and largest[key] else 0
            cells.append(f'<td class="bar" style="--w:{share:.3f}">{show(row)}</td>')
        lines.append(f'<tr class="row c{i}{" base" if row["base"] else ""}">{"".join(cells)}</tr>')
    about = [
        tr("FLOPs: {what}.", what=tr(words.flops_note)),
        tr("Time: training without evaluations."),
        tr("Decoding: {how}.", how=tr(words.decoding_note)) if words.decoding_note else "",
        tr("Memory: peak of the training process."),
        tr("Cache: for one sequence; const: a state of constant size.") if has_cache else "",
        tr("Skipped: steps whose loss was not finite."),
        tr("Dead: hidden feed-forward units that no token of the validation text activates."),
    ]
    head = ["Design", *(column.title for column in columns)]
    return PageSection(
        tr("Cost"),
        tr(" ").join(filter(None, about)),
        render_table(tr("Cost"), head, lines) if done_rows else "",
    )


def find_report(row: ResultRow, plan: ComparisonPlan) -> str:
    """The address of the report of a design's first trial, relative to the comparison; '' without one."""
    designs = (design for design in plan.designs if design.name == row["name"])
    reports = (plan.trial_dir(design, seed) / "report.html" for design in designs for seed in plan.seeds[:1])
    return next(
        (quote(report.relative_to(plan.out).as_posix()) for report in reports if report.is_file()), ""
    )


def render_name_cell(i: int, row: ResultRow, report: str = "") -> str:
    """Cell with the number, colour and name of a design, which leads to its report."""
    tag = f'<span class="tag">{tr("base")}</span>' if row["base"] and row["name"] != "base" else ""
    tag += f'<span class="tag">{escape(tr("not learned"))}</span>' if is_unlearned(row) else ""
    name = escape(row["name"]).replace("=", "=<wbr>").replace("(", "<wbr>(")  # line breaks in long names
    if report:
        name = f'<a href="{report}">{name}</a>'
    return (
        '<th scope="row"><div class="who"><span '
        f'class="badge">{i + 1}</span><span>{name}{tag}</span></div></th>'
    )


def render_table(name: str, head: Sequence[str], lines: Sequence[str]) -> str:
    """HTML table that scrolls horizontally if it does not fit."""
    titles = "".join(f'<th scope="col">{escape(tr(title))}</th>' for title in head)
    table = f'<table class="designs"><thead><tr>{titles}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return scroll_region(table, name, "framed")


_COLOURS = ("accent", "second", "good", "bad", "fifth", "sixth")
_DASHES = ("none", "8 5", "2 4", "10 3 2 3")


def write_compare_page(path: Path, rows: ResultRows, plan: ComparisonPlan) -> Path:
    """Write the page of a comparison, finished or not."""
    return save_page(path, render_compare_page(rows, plan))


@in_both_languages
def render_compare_page(rows: ResultRows, plan: ComparisonPlan) -> str:
    """The HTML document."""
    done = [row for row in rows if row["status"] == "done"]
    learned = [row for row in done if not is_unlearned(row)]
    complete = [row for row in learned if not row["fewer"]] or learned
    sections = [
        render_result(rows, done, complete, plan),
        render_quality_table(done, plan),
        render_cost_table(done, plan),
        render_curves(done),
        render_pareto(complete, comparable_measures(done, plan.task.measures)),
        render_recipes(rows),
    ]
    signatures = (done[0]["signatures"] if done else None) or {}
    return render_html(
        tr("Comparison of {n} designs", n=len(rows)),
        describe_comparison(rows, plan),
        [section for section in sections if section.body],
        " · ".join(f"{name}: {text}" for name, text in signatures.items()),
        style=read_asset("page.css", "polyhead.compare.report") + make_palette(done),
        script=read_asset("page.js", "polyhead.compare.report"),
    )


def describe_comparison(rows: ResultRows, plan: ComparisonPlan) -> str:
    """Summary of what was compared."""
    text = plan.base.data
    waiting = sum(row["status"] == "waiting" for row in rows)
    pair = tr(" to ").join(filter(None, (text.source_lang, text.target_lang)))
    sentences = [
        tr("The same text ({pair}) in the same order.", pair=pair)
        if pair
        else tr("The same text in the same order."),
        tr("{n} equal seeds.", n=len(plan.seeds)) if len(plan.seeds) > 1 else tr("The same seed."),
        tr("Equal budget for each design: {budget}.", budget=plan.budget.localize()),
        tr("Equal parameters.") if plan.match else "",
        tr("{n} designs have not been run yet.", n=waiting) if waiting else "",
    ]
    return tr(" ").join(filter(None, sentences))


def make_palette(done_rows: ResultRows) -> str:
    """CSS with a colour and a dash pattern for each design; the base is drawn thicker."""
    rules = []
    for i, row in enumerate(done_rows):
        dash = _DASHES[i // len(_COLOURS) % len(_DASHES)]
        rules.append(
            f".c{i}{{--c:var(--{_COLOURS[i % len(_COLOURS)]})}}.c{i}.curve{{stroke-dasharray:{dash}}}"
        )
        if row["base"]:
            rules.append(f".c{i}.curve{{stroke-width:4}}.c{i}.mark{{stroke:var(--ink);stroke-width:2}}")
    return "".join(rules)


def render_result(
    rows: ResultRows, done_rows: ResultRows, complete_rows: ResultRows, plan: ComparisonPlan
) -> PageSection:
    """Tiles with the best designs that were measured on the whole text; a list of those that did not run."""
    tiles = [(tr("designs"), str(len(rows)), tr("{n} measured", n=len(done_rows)))]
    if done_rows:
        main_metrics = plan.task.measures[:2]
        if not complete_rows:
            tiles.append((tr("verdict"), tr("none"), tr("no design has learned yet")))
        for measure in comparable_measures(done_rows, main_metrics) if complete_rows else ():
            best = (min if measure.lower_is_better else max)(complete_rows, key=lambda row: row[measure.name])
            name = "lowest {measure}" if measure.lower_is_better else "highest {measure}"
            tiles.append((tr(name, measure=tr(measure.column)), format_tile(best, measure), best["name"]))
        for row in done_rows:
            if row["base"]:
                rest = ", ".join(
                    f"{tr(measure.column)} {format_tile(row, measure)}" for measure in main_metrics[1:]
                )
                tiles.append((tr("base"), format_tile(row, main_metrics[0]), rest))
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dt>{escape(of)}</dt></div>"
        for name, value, of in tiles
    )
    body = f'<dl class="tiles verdicts">{items}</dl>'
    noted_rows = [row for row in rows if describe_row(row)]
    if noted_rows:
        lines = "".join(
            f'<li class="{row["status"]}"><b>{escape(row["name"])}</b> {escape(describe_row(row))}</li>'
            for row in noted_rows
        )
        body += f'<ul class="said">{lines}</ul>'
    if unlearned := describe_unlearned(done_rows, plan.task.measures):
        body += f'<ul class="said"><li class="failed">{escape(unlearned)}</li></ul>'
    return PageSection(tr("Result"), "", body)


def format_tile(row: ResultRow, measure: QualityMeasure) -> str:
    """Value of a row in the format of a tile."""
    return f"{row[measure.name]:.{measure.interval_digits}f}"


def render_recipes(rows: ResultRows) -> PageSection:
    """Recipe of each row, as it was run."""
    parts = []
    for row in rows:
        if not row["recipe"]:
            continue
        changes = " ".join(row["changes"]) or tr("the recipe as it is")
        parts.append(
            f"<details><summary><b>{escape(row['name'])}</b> <code>{escape(changes)}</code></summary>"
            f'<pre tabindex="0">{escape(row["recipe"])}</pre></details>'
        )
    about = tr("Complete, with all defaults: polyhead train with this recipe reproduces the run.")
    return PageSection(tr("Recipes"), about, f'<div class="recipes">{"".join(parts)}</div>' if parts else "")
