"""Page of an experiment: claims with their verdicts, then the measurements; plots of dots with intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from html import escape
from typing import Any

from polyhead.core.array_types import is_named_tuple
from polyhead.core.i18n import get_language, tr, translate_message
from polyhead.explain.chapters import load_chapters
from polyhead.introspect.attention_map import AttentionMap
from polyhead.viz.attention_page import heat_map_svg
from polyhead.viz.html_page import (
    REPOSITORY,
    PageSection,
    in_both_languages,
    paragraph,
    read_asset,
    render_html,
    scroll_region,
)
from polyhead.viz.plot import (
    BOTTOM,
    X_SPACING,
    Curve,
    Scale,
    enclosing_axis,
    format_number,
    format_scale,
    left_margin,
    legend,
    line_figure,
    svg,
    tag,
    text,
    x_tick_labels,
)
from polyhead.viz.plots import ParetoChart, ParetoPoint, pareto_svg
from polyhead_lab.registry import (
    AttentionPlot,
    Claim,
    DotPlot,
    ExperimentResult,
    Figure,
    LinePlot,
    ParetoPlot,
    ResultTable,
)
from polyhead_lab.statistics import mean_interval

_ROW_HEIGHT, _TOP, _VALUE_WIDTH, _MAX_NAME = 34, 8, 96, 30  # three lengths in pixels, one in characters


def render_dot_plot(plot: DotPlot, width: int) -> str:
    """SVG element; rows from top to bottom, values from left to right."""
    finite = [v for values in plot.rows.values() for v in values if math.isfinite(v)]
    left = left_margin(name[:_MAX_NAME] for name in plot.rows)
    base = _TOP + _ROW_HEIGHT * len(plot.rows)
    x = enclosing_axis(finite or [0.0, 1.0], left, width - _VALUE_WIDTH, X_SPACING)
    parts = [tag("line", "grid", x1=at, x2=at, y1=_TOP, y2=base) for at, _ in x.labels()]
    parts += x_tick_labels(x, base + 18)
    parts.append(text("label end", x.scale.end, base + 36, plot.x_label))
    for i, (name, values) in enumerate(plot.rows.items()):
        parts += draw_row(name, values, x.scale, _TOP + _ROW_HEIGHT * (i + 0.5))
    means = []
    for name, values in plot.rows.items():
        finite = [v for v in values if math.isfinite(v)]
        means.append(f"{name} {format_number(mean_interval(finite).mean) if finite else tr('diverged')}")
    alt_text = f"{plot.x_label}: {'; '.join(means)}"
    return svg("chart dots", width, base + BOTTOM, alt_text, parts, data_x=format_scale(x.scale))


def draw_row(name: str, values: Sequence[float], x: Scale, y: float) -> list[str]:
    """Row of one design: name, seeds, mean with its 95 % interval if there is one, and the mean as text."""
    finite = [v for v in values if math.isfinite(v)]
    parts, label = [text("name end", x.start - 12, y + 4, name)], ""
    if finite:
        interval = mean_interval(finite)
        if math.isfinite(interval.half_width):
            low, high = (x.to_pixel(min(max(v, x.lo), x.hi)) for v in (interval.low, interval.high))
            parts.append(tag("line", "reach", x1=low, x2=high, y1=y, y2=y))
        parts += [tag("circle", "seed", cx=x.to_pixel(v), cy=y, r=3) for v in finite]
        parts.append(tag("circle", "mean", cx=x.to_pixel(interval.mean), cy=y, r=5))
        label = format_number(interval.mean)
    if lost := len(values) - len(finite):
        label += " " + tr("({lost} of {n} lost)", lost=lost, n=len(values)) if finite else tr("diverged")
    return [*parts, text("tick value", x.end + 14, y + 4, label)]


# pixels, for wide and for narrow screens
_LINE_SIZES, _PARETO_SIZES = ((900, 330), (380, 260)), ((900, 460), (400, 420))
_DOT_WIDTHS = (900, 460)
_VERDICT_CLASSES = {True: "held", False: "not", None: "open"}


@in_both_languages
def render_lab_page(result: ExperimentResult, quick: bool, note: str, name: str = "") -> str:
    """Complete HTML page; ``note`` is its footer, ``name`` the experiment whose documentation it links."""
    result = translate_result(result)
    tally = Counter(claim.verdict for claim in result.claims)
    lead = tr(
        "Claims of the literature, measurements of this machine, and verdicts: {tally}.",
        tally=tr(", ").join(f"{n} {tr(verdict)}" for verdict, n in tally.items()),
    )
    figures = "\n".join(map(render_figure, result.figures))
    method = "".join(f"<p>{escape(p)}</p>" for p in result.method.split("\n\n"))
    sections = [
        PageSection(tr("Claims"), lead, render_claims(result.claims)),
        PageSection(tr("Measurements"), tr("Point at a curve to read its values."), figures),
        PageSection(tr("How it was measured"), "", method),
        PageSection(tr("Read on"), "", render_links(name) if name else ""),
    ]
    if quick:
        warning = tr("Quick run: a fraction of the size, as a smoke test. Its verdicts mean nothing.")
        sections[0] = sections[0]._replace(body=f'<p class="quick">{escape(warning)}</p>{sections[0].body}')
    nonempty_sections = [section for section in sections if section.body]
    return render_html(
        result.title, result.lead, nonempty_sections, note, style=read_asset("lab.css", "polyhead_lab")
    )


def render_links(name: str) -> str:
    """Links to the documentation of an experiment, and to the chapters that name it."""
    language = get_language()
    chapters = [
        (
            tr("Chapter: {title}", title=chapter["title"]),
            f"src/polyhead/explain/chapters/{language}/{chapter['number']:02}-{chapter['name']}.md",
        )
        for chapter in load_chapters(language)
        if any(experiment["name"] == name for experiment in chapter["experiment"])
    ]
    links = [(tr("This experiment in the documentation"), f"docs/lab.md#{name}"), *chapters]
    anchors = (f'<a href="{REPOSITORY}/{path}" rel="noopener">{escape(words)}</a>' for words, path in links)
    return f'<p class="site-links">{"".join(anchors)}</p>'


def translate_result(result: ExperimentResult) -> ExperimentResult:
    """Translate the texts of a result into the page's language; citations and names of designs are kept."""
    return result if get_language() == "en" else _translate_value(result)


def _translate_value(value: Any) -> Any:
    """Translate each text of a value that the catalog of the lab has."""
    if isinstance(value, str):
        paragraphs = value.split("\n\n")
        for i, text in enumerate(paragraphs):
            paragraphs[i] = tr(translate_message(text, "lab"))
            if paragraphs[i] == text:  # the catalog may have its parts
                paragraphs[i] = "; ".join(tr(translate_message(part, "lab")) for part in text.split("; "))
        return "\n\n".join(paragraphs)
    if isinstance(value, ExperimentResult):
        return replace(
            value, **{field.name: _translate_value(getattr(value, field.name)) for field in fields(value)}
        )
    if isinstance(value, Mapping):
        return {_translate_value(name): _translate_value(inner) for name, inner in value.items()}
    if is_named_tuple(value):
        return type(value)(*map(_translate_value, value))
    if isinstance(value, Sequence):
        return [_translate_value(inner) for inner in value]
    return value


def render_claims(results: Sequence[Claim]) -> str:
    """HTML list of the claims."""
    items = (
        f'<li><p class="sentence-of">{escape(c.sentence)}</p><span class="verdict '
        f'{_VERDICT_CLASSES[c.is_supported]}">{escape(tr(c.verdict) + c.scope)}</span>'
        f'<p class="cited">{escape(c.source)}</p>'
        f'<p class="measured"><b>{escape(tr("Measured"))}</b>{escape(keep_intervals(c.measurement))}</p></li>'
        for c in results
    )
    return f'<ol class="claims">{"".join(items)}</ol>'


def render_figure(figure: Figure) -> str:
    """A plot with its legend, of which only line charts have values that the script shows, or a table."""
    if isinstance(figure, ResultTable):
        return render_result_table(figure)
    if isinstance(figure, LinePlot):
        curves = [Curve(*curve) for curve in figure.curves.items()]
        return line_figure(
            figure.title, curves, figure.x_label, *_LINE_SIZES, note=figure.caption,
            from_zero=figure.from_zero, log_x=figure.log,
        )  # fmt: skip
    if isinstance(figure, DotPlot):
        return render_still_figure(figure, [render_dot_plot(figure, width) for width in _DOT_WIDTHS])
    if isinstance(figure, AttentionPlot):
        attention = AttentionMap(figure.words, figure.words, [[figure.weights]], "self-attention")
        return render_still_figure(figure, [scroll_region(heat_map_svg(attention), figure.title)])
    chart = make_error_chart(figure)
    charts = [pareto_svg(chart, *size) for size in _PARETO_SIZES]
    return render_still_figure(figure, charts, legend(list(figure.families)))


def render_still_figure(plot: Figure, charts: Sequence[str], names: str = "") -> str:
    """A figure without a script: charts in two sizes, of which the style sheet shows the one that fits."""
    return (
        f'<figure class="dotted sizes"><figcaption><b>{escape(plot.title)}</b> {names}'
        f"{paragraph(plot.caption)}</figcaption>{''.join(charts)}</figure>"
    )


def make_error_chart(plot: ParetoPlot) -> ParetoChart:
    """Errors below the floor are at the floor, whose tick includes them.

    The label of a family's first point is its full name; those of the others omit the family's name.
    """
    points = [
        ParetoPoint(i, name, cost, max(error, plot.floor), (), name.removeprefix(f"{family} ") if n else name)
        for i, (family, choices) in enumerate(plot.families.items())
        for n, (name, cost, error) in enumerate(choices)
    ]

    def format_error(value: float) -> str:
        return f"≤{value:g}" if value <= plot.floor else format_number(value)

    return ParetoChart(points, plot.x_label, plot.y_label, log=True, format_quality=format_error)


def keep_intervals(text: str) -> str:
    """The text without line breaks in an interval or a percentage."""
    return text.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def render_result_table(table: ResultTable) -> str:
    """Table with its title and caption."""
    head = "".join(f"<th>{escape(str(cell))}</th>" for cell in table.head)
    rows = ""
    for row in table.rows:
        cells = (keep_intervals(cell) if isinstance(cell, str) else format_number(cell) for cell in row)
        rows += f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    more = f"<span>{escape(table.caption)}</span>" if table.caption else ""
    body = (
        f'<table class="figures"><caption>{escape(table.title)}{more}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )
    return scroll_region(body, table.title, "sheet")
