"""Tables of the page: quality, with intervals drawn on a common scale, and cost, with bars."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from polyhead.compare.io import ResultRow
from polyhead.compare.plan import ComparisonPlan
from polyhead.compare.report import text_table
from polyhead.compare.results import baseline_rows, is_unlearned
from polyhead.compare.tasks.base import QualityMeasure
from polyhead.core.i18n import tr
from polyhead.viz.html_page import PageSection, scroll_region


def render_quality_table(done_rows: Sequence[ResultRow], plan: ComparisonPlan) -> PageSection:
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
        cells = [render_name_cell(i, row)]
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


def render_baseline_row(row: ResultRow, measures: Sequence[QualityMeasure]) -> str:
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


def render_cost_table(done_rows: Sequence[ResultRow], plan: ComparisonPlan) -> PageSection:
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


def render_name_cell(i: int, row: ResultRow) -> str:
    """Cell with the number, colour and name of a design."""
    tag = f'<span class="tag">{tr("base")}</span>' if row["base"] and row["name"] != "base" else ""
    tag += f'<span class="tag">{escape(tr("not learned"))}</span>' if is_unlearned(row) else ""
    name = escape(row["name"]).replace("=", "=<wbr>").replace("(", "<wbr>(")  # line breaks in long names
    return (
        '<th scope="row"><div class="who"><span '
        f'class="badge">{i + 1}</span><span>{name}{tag}</span></div></th>'
    )


def render_table(name: str, head: Sequence[str], lines: Sequence[str]) -> str:
    """HTML table that scrolls horizontally if it does not fit."""
    titles = "".join(f'<th scope="col">{escape(tr(title))}</th>' for title in head)
    table = f'<table class="designs"><thead><tr>{titles}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return scroll_region(table, name, "framed")
