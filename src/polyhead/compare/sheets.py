"""The two tables of the page: quality with its intervals drawn side by side, and cost with bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from polyhead.analysis.page import Section, scrollable
from polyhead.compare import table
from polyhead.compare.plan import Plan
from polyhead.compare.tasks.base import Measure
from polyhead.compare.unlearned import baseline_rows, is_unlearned
from polyhead.core.i18n import tr

Row = Mapping[str, Any]


def quality(done: Sequence[Row], plan: Plan) -> Section:
    """How good each design is, with intervals drawn beside each other."""
    if not done:
        return Section(tr("Quality"), "", "")
    many = len(plan.seeds) > 1
    measures = plan.task.measures
    spans = {measure.name: span_of(done, measure.name) for measure in measures}
    base = next((row for row in done if row["base"]), None)
    of_tokens = measures[0].of_tokens
    head = ["Design", "Loss", *(["Perplexity"] if of_tokens else []), "95 %", "p"]
    head += [title for measure in measures[1:] for title in (measure.column, "95 %", "p")]
    lines = []
    for i, row in enumerate(done):
        cells = [name_cell(i, row)]
        for measure in measures:
            name, digits = measure.name, measure.digits
            spread = row[f"{name}_spread"]
            plus = f"<small>±{spread:.{digits}f}</small>" if many and spread is not None else ""
            cells.append(f"<td>{row[name]:.{digits}f}{plus}</td>")
            if name == "loss" and of_tokens:
                cells.append(f"<td>{row['ppl']:.2f}</td>")
            cells.append(f"<td>{range_bar(row, measure, spans[name], base)}</td>")
            cells.append(p_cell(row, measure, base))
        lines.append(f'<tr class="row c{i}{" base" if row["base"] else ""}">{"".join(cells)}</tr>')
    lines += [baseline_line(row, measures) for row in baseline_rows(done, measures)]
    return Section(tr("Quality"), about_quality(done[0]["split"], plan), framed(tr("Quality"), head, lines))


def about_quality(split: str, plan: Plan) -> str:
    """What the columns of the first table are, and how their intervals were found."""
    losses, *others = plan.task.measures
    *first, last = (tr(measure.column) for measure in others)
    return tr(" ").join(
        [
            tr("Loss and perplexity are of a token of the validation text.")
            if losses.of_tokens
            else tr("Loss is the mean over the texts of the validation text."),
            tr(
                "{measures} are of the test text."
                if split == "test"
                else "{measures} are of the validation text.",
                measures=tr(" and ").join([", ".join(first), last] if first else [last]),
            ),
            tr(
                "Bars are 95 % intervals of 1,000 bootstrap resamples of the {units}, the line is the base.",
                units=tr(plan.task.words.unit),
            ),
            tr("p is the chance of a difference from the base as large, by paired bootstrap (Koehn, 2004)."),
            tr("± is the standard deviation over the seeds.")
            if len(plan.seeds) > 1
            else tr("One seed says nothing about other seeds."),
        ]
    )


def baseline_line(row: Row, measures: Sequence[Measure]) -> str:
    """The baselines of all measures as a line of the table."""
    cells = [f'<th scope="row"><div class="who"><span>{escape(row["name"])}</span></div></th>']
    for measure in measures:
        values = [(row[measure.name], measure.digits)]
        if measure.name == "loss" and measure.of_tokens:
            values.append((row["ppl"], 2))
        cells += [f"<td>{'' if value is None else f'{value:.{digits}f}'}</td>" for value, digits in values]
        cells.append("<td></td><td></td>")
    return f'<tr class="soft">{"".join(cells)}</tr>'


def span_of(done: Sequence[Row], name: str) -> tuple[float, float]:
    """The range that all intervals of a measure lie in."""
    ends = [end for row in done for end in row[f"{name}_interval"]]
    return min(ends), max(ends)


def range_bar(row: Row, measure: Measure, span: tuple[float, float], base: Row | None) -> str:
    """An interval as a bar on the scale that all rows share."""
    name, digits = measure.name, measure.ends
    width = (span[1] - span[0]) or 1.0

    def at(value: float) -> str:
        return f"{100 * (value - span[0]) / width:.1f}%"

    low, high = row[f"{name}_interval"]
    line = f'<u style="left:{at(base[name])}"></u>' if base else ""
    return (
        f'<span class="range" title="{tr("{low} to {high}", low=f"{low:.{digits}f}", high=f"{high:.{digits}f}")}">{line}'
        f'<i style="left:{at(low)};right:calc(100% - {at(high)})"></i><b style="left:{at(row[name])}"></b></span>'
    )


def p_cell(row: Row, measure: Measure, base: Row | None) -> str:
    """The significance of a difference, coloured by its direction where it is below 0.05."""
    name = measure.name
    p = row[f"{name}_p"]
    if p is None or base is None:
        return f'<td class="soft">{tr("base")}</td>' if row["base"] else "<td></td>"
    better = (row[name] < base[name]) == measure.less_is_better
    look = ("better" if better else "worse") if p < 0.05 else "soft"
    return f'<td class="{look}">{p:.3f}</td>'


def cost(done: Sequence[Row], plan: Plan) -> Section:
    """What each design costs; the bar behind a number is its share of the largest."""
    words = plan.task.words
    columns = [one for one in table.prices(words.each) if table.told_of(done, one.show)]
    most = {key: max((row[key] or 0 for row in done), default=0) for _, _, key, _ in columns if key}
    cached = any(one.key == "cache_per_token" for one in columns)
    lines = []
    for i, row in enumerate(done):
        cells = [name_cell(i, row)]
        for _, _, key, show in columns:
            share = (row[key] or 0) / most[key] if key and most[key] else 0
            cells.append(f'<td class="bar" style="--w:{share:.3f}">{show(row)}</td>')
        lines.append(f'<tr class="row c{i}{" base" if row["base"] else ""}">{"".join(cells)}</tr>')
    about = [
        tr("FLOPs: {what}.", what=tr(words.flops)),
        tr("Time: of training, evaluations left out."),
        tr("Decoding: {how}.", how=tr(words.decoding)) if words.decoding else "",
        tr("Memory: the most that the process of training held."),
        tr("Cache: of one sequence; const: a state whose size does not grow.") if cached else "",
        tr("Skipped: steps whose loss was not finite."),
        tr("Dead: hidden feed-forward units that no token of the validation text activates."),
    ]
    head = ["Design", *(one.title for one in columns)]
    return Section(
        tr("Cost"), tr(" ").join(filter(None, about)), framed(tr("Cost"), head, lines) if done else ""
    )


def name_cell(i: int, row: Row) -> str:
    """The number of a design, its colour and its name."""
    tag = f'<span class="tag">{tr("base")}</span>' if row["base"] and row["name"] != "base" else ""
    tag += f'<span class="tag">{escape(tr("not learned"))}</span>' if is_unlearned(row) else ""
    name = escape(row["name"]).replace("=", "=<wbr>").replace("(", "<wbr>(")  # where a long one may be broken
    return f'<th scope="row"><div class="who"><span class="badge">{i + 1}</span><span>{name}{tag}</span></div></th>'


def framed(name: str, head: Sequence[str], lines: Sequence[str]) -> str:
    """A table that scrolls sideways where it does not fit."""
    titles = "".join(f'<th scope="col">{escape(tr(title))}</th>' for title in head)
    table = f'<table class="designs"><thead><tr>{titles}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return scrollable(table, name, "framed")
