"""Comparison as a self-contained HTML page: tables, curves, quality against cost, and all recipes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from polyhead.compare.io import ResultRow
from polyhead.compare.plan import ComparisonPlan
from polyhead.compare.report.charts import render_curves, render_pareto
from polyhead.compare.report.html_tables import render_cost_table, render_quality_table
from polyhead.compare.report.text_table import describe_row
from polyhead.compare.results import comparable_measures, describe_unlearned, is_unlearned
from polyhead.compare.tasks.base import QualityMeasure
from polyhead.core.i18n import tr
from polyhead.viz.html_page import PageSection, read_asset, render_html, save_page

_COLOURS = ("accent", "second", "good", "bad", "fifth", "sixth")
_DASHES = ("none", "8 5", "2 4", "10 3 2 3")


def write_compare_page(path: Path, rows: Sequence[ResultRow], plan: ComparisonPlan) -> Path:
    """Write the page of a comparison, finished or not."""
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
    html = render_html(
        tr("Comparison of {n} designs", n=len(rows)),
        describe_comparison(rows, plan),
        [section for section in sections if section.body],
        describe_signatures(done),
        style=read_asset("page.css", "polyhead.compare.report") + make_palette(done),
        script=read_asset("page.js", "polyhead.compare.report"),
    )
    return save_page(path, html)


def describe_comparison(rows: Sequence[ResultRow], plan: ComparisonPlan) -> str:
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


def describe_signatures(done_rows: Sequence[ResultRow]) -> str:
    """Signatures of the metrics."""
    if not done_rows or not done_rows[0]["signatures"]:
        return ""
    return " · ".join(f"{name}: {text}" for name, text in done_rows[0]["signatures"].items())


def make_palette(done_rows: Sequence[ResultRow]) -> str:
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
    rows: Sequence[ResultRow],
    done_rows: Sequence[ResultRow],
    complete_rows: Sequence[ResultRow],
    plan: ComparisonPlan,
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


def render_recipes(rows: Sequence[ResultRow]) -> PageSection:
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
