"""The page of an experiment: claims with their verdicts first, then what they rest on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from html import escape
from typing import Any

from polyhead.analysis.charts import line_chart, number, thin
from polyhead.analysis.page import Section, asset, data, page, scrollable
from polyhead.core.i18n import get_language, tr, translate_message
from polyhead.lab.dots import dot_chart
from polyhead.lab.front import front_chart
from polyhead.lab.result import Claim, Dots, Front, Plot, Result, Table

WIDE, NARROW = (900, 330), (380, 260)
LOOKS = {True: "held", False: "not", None: "open"}


def lab_page(result: Result, quick: bool, note: str) -> str:
    """The whole document; ``note`` stands at its foot."""
    result = translate_result(result)
    lead = tr(
        "What the literature says, what this machine measured, and whether it held: {tally}.",
        tally=tally(result.claims),
    )
    drawn = "\n".join(DRAWN[type(figure)](figure) for figure in result.figures)
    method = "".join(f"<p>{escape(p)}</p>" for p in result.method.split("\n\n"))
    sections = [
        Section(tr("Claims"), lead, claims(result.claims)),
        Section(tr("Measurements"), tr("Point at a curve to read its values."), drawn),
        Section(tr("How it was measured"), "", method),
    ]
    if quick:
        warning = tr("Quick run: a fraction of the size, to see that it runs. Its verdicts mean nothing.")
        sections[0] = sections[0]._replace(body=f'<p class="quick">{escape(warning)}</p>{sections[0].body}')
    there = [section for section in sections if section.body]
    return page(result.title, result.lead, there, note, style=asset("lab.css", "polyhead.lab"))


def translate_result(result: Result) -> Result:
    """The result with its texts in the language of the page; citations and names of designs are as they are."""
    return result if get_language() == "en" else _translated(result)


def _translated(value: Any) -> Any:
    """Each text of a value in the language of the page, as far as the catalog of the lab knows it."""
    if isinstance(value, str):
        return "\n\n".join(map(_translate_paragraph, value.split("\n\n")))
    if isinstance(value, Result):
        return replace(
            value, **{field.name: _translated(getattr(value, field.name)) for field in fields(value)}
        )
    if isinstance(value, Mapping):
        return {_translated(name): _translated(inner) for name, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return type(value)(*map(_translated, value))
    if isinstance(value, Sequence):
        return [_translated(inner) for inner in value]
    return value


def _translate_paragraph(text: str) -> str:
    """A paragraph as a whole; where the catalog lacks that, what stands between its semicolons."""
    whole = tr(translate_message(text, "lab"))
    if whole != text or "; " not in text:
        return whole
    return "; ".join(tr(translate_message(part, "lab")) for part in text.split("; "))


def tally(several: Sequence[Claim]) -> str:
    """How many claims held, did not, and stay open."""
    words = [claim.verdict for claim in several]
    return tr(", ").join(f"{words.count(word)} {tr(word)}" for word in dict.fromkeys(words))


def claims(several: Sequence[Claim]) -> str:
    """The list of claims."""
    items = (
        f'<li><p class="sentence-of">{escape(c.sentence)}</p><span class="verdict {LOOKS[c.held]}">{escape(tr(c.verdict))}</span>'
        f'<p class="cited">{escape(c.source)}</p>'
        f'<p class="measured"><b>{escape(tr("Measured"))}</b>{escape(c.measured)}</p></li>'
        for c in several
    )
    return f'<ol class="claims">{"".join(items)}</ol>'


def plotted(plot: Plot) -> str:
    """Curves in two sizes, of which the style shows the one that fits, with a legend that reads out values."""
    curves = [curve._replace(points=thin(curve.points)) for curve in plot.curves]
    curves = [curve for curve in curves if curve.points]
    points = [[[float(f"{x:.6g}"), float(f"{y:.4g}")] for x, y in curve.points] for curve in curves]
    legend = "".join(
        f'<span class="key c{i}">{escape(curve.name)} <output>{number(curve.points[-1][1])}</output></span>'
        for i, curve in enumerate(curves)
    )
    last = number(max(curve.points[-1][0] for curve in curves))
    charts = "".join(
        line_chart(curves, plot.x_label, plot.title, *size, plot.from_zero, plot.log)
        for size in (WIDE, NARROW)
    )
    return (
        f'<figure class="plot sizes"><figcaption><b>{escape(plot.title)}</b>{legend}'
        f'<span class="at">{escape(plot.x_label)} <output>{last}</output></span>{about(plot.about)}</figcaption>'
        f"{charts}{data(points)}</figure>"
    )


def dotted(dots: Dots) -> str:
    """Rows of dots in two sizes; no curves, so nothing for the script to read out."""
    charts = "".join(dot_chart(dots, width) for width in (WIDE[0], 460))
    return (
        f'<figure class="dotted sizes"><figcaption><b>{escape(dots.title)}</b>{about(dots.about)}</figcaption>'
        f"{charts}</figure>"
    )


def fronted(front: Front) -> str:
    """Points in the plane in two sizes, with the families as legend."""
    charts = "".join(front_chart(front, *size) for size in ((900, 460), (400, 420)))
    legend = "".join(f'<span class="key c{i}">{escape(name)}</span>' for i, name in enumerate(front.families))
    return (
        f'<figure class="dotted fronts sizes"><figcaption><b>{escape(front.title)}</b> {legend}{about(front.about)}</figcaption>'
        f"{charts}</figure>"
    )


def tabled(table: Table) -> str:
    """A table with its title and what there is to say about it."""
    head = "".join(f"<th>{escape(str(cell))}</th>" for cell in table.head)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell_text(cell))}</td>' for cell in row)}</tr>" for row in table.rows
    )
    more = f"<span>{escape(table.about)}</span>" if table.about else ""
    body = (
        f'<table class="figures"><caption>{escape(table.title)}{more}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )
    return scrollable(body, table.title, "sheet")


def cell_text(cell: str | float) -> str:
    """A cell as text; what belongs together stays in one line."""
    return (
        cell.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")
        if isinstance(cell, str)
        else number(cell)
    )


def about(text: str) -> str:
    """The sentence under a title."""
    return f'<p class="about">{escape(text)}</p>' if text else ""


DRAWN: dict[type, Callable[..., str]] = {Plot: plotted, Dots: dotted, Table: tabled, Front: fronted}
