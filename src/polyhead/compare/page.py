"""The comparison as one self-contained page: tables, curves, quality against cost, and the recipe of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from polyhead.analysis.page import Section, asset, page, write
from polyhead.compare.curves import curves, pareto
from polyhead.compare.plan import Plan
from polyhead.compare.results import alike
from polyhead.compare.sheets import cost, quality
from polyhead.compare.tasks.base import Measure
from polyhead.compare.unlearned import describe_unlearned, is_unlearned
from polyhead.core.i18n import tr, translate_message

Row = Mapping[str, Any]
COLOURS = ("accent", "second", "good", "bad", "fifth", "sixth")
DASHES = ("none", "8 5", "2 4", "10 3 2 3")


def write_page(path: Path, rows: Sequence[Row], plan: Plan) -> Path:
    """Write the page of a comparison, finished or not."""
    done = [row for row in rows if row["status"] == "done"]
    learned = [row for row in done if not is_unlearned(row)]
    whole = [row for row in learned if not row["fewer"]] or learned
    sections = [
        result(rows, done, whole, plan),
        quality(done, plan),
        cost(done, plan),
        curves(done),
        pareto(whole, alike(done, plan.task.measures)),
        recipes(rows),
    ]
    html = page(
        tr("Comparison of {n} designs", n=len(rows)),
        lead(rows, plan),
        [section for section in sections if section.body],
        note(done),
        style=asset("page.css", "polyhead.compare") + palette(done),
        script=asset("page.js", "polyhead.compare"),
    )
    return write(path, html)


def lead(rows: Sequence[Row], plan: Plan) -> str:
    """What was compared, in a sentence."""
    text = plan.base.data
    waiting = sum(row["status"] == "waiting" for row in rows)
    pair = tr(" to ").join(filter(None, (text.source_lang, text.target_lang)))
    sentences = [
        tr("The same text ({pair}) in the same order.", pair=pair)
        if pair
        else tr("The same text in the same order."),
        tr("{n} equal seeds.", n=len(plan.seeds)) if len(plan.seeds) > 1 else tr("The same seed."),
        tr("An equal budget for each design: {budget}.", budget=plan.budget.translated()),
        tr("Equal parameters.") if plan.match else "",
        tr("{n} designs have not been run yet.", n=waiting) if waiting else "",
    ]
    return tr(" ").join(filter(None, sentences))


def note(done: Sequence[Row]) -> str:
    """How scores were computed."""
    if not done or not done[0]["signatures"]:
        return ""
    return " · ".join(f"{name}: {text}" for name, text in done[0]["signatures"].items())


def palette(done: Sequence[Row]) -> str:
    """A colour and a dash for each design; the base is drawn thicker."""
    rules = []
    for i, row in enumerate(done):
        dash = DASHES[i // len(COLOURS) % len(DASHES)]
        rules.append(f".c{i}{{--c:var(--{COLOURS[i % len(COLOURS)]})}}.c{i}.curve{{stroke-dasharray:{dash}}}")
        if row["base"]:
            rules.append(f".c{i}.curve{{stroke-width:4}}.c{i}.mark{{stroke:var(--ink);stroke-width:2}}")
    return "".join(rules)


def result(rows: Sequence[Row], done: Sequence[Row], whole: Sequence[Row], plan: Plan) -> Section:
    """The answer in large, the best of those that were measured on the whole text, and what did not run."""
    tiles = [(tr("designs"), str(len(rows)), tr("{n} measured", n=len(done)))]
    if done:
        chief = plan.task.measures[:2]
        if not whole:
            tiles.append((tr("verdict"), tr("none"), tr("no design has learned yet")))
        for measure in alike(done, chief) if whole else ():
            best = (min if measure.less_is_better else max)(whole, key=lambda row: row[measure.name])
            name = "lowest {measure}" if measure.less_is_better else "highest {measure}"
            tiles.append((tr(name, measure=tr(measure.column)), shown(best, measure), best["name"]))
        for row in done:
            if row["base"]:
                rest = ", ".join(f"{tr(measure.column)} {shown(row, measure)}" for measure in chief[1:])
                tiles.append((tr("base"), shown(row, chief[0]), rest))
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dt>{escape(of)}</dt></div>"
        for name, value, of in tiles
    )
    body = f'<dl class="tiles verdicts">{items}</dl>'
    unlike = [row for row in rows if row["status"] != "done" or row["note"]]
    if unlike:
        lines = "".join(
            f'<li class="{row["status"]}"><b>{escape(row["name"])}</b> {escape(explain_row(row))}</li>'
            for row in unlike
        )
        body += f'<ul class="said">{lines}</ul>'
    if unlearned := describe_unlearned(done, plan.task.measures):
        body += f'<ul class="said"><li class="failed">{escape(unlearned)}</li></ul>'
    return Section(tr("Result"), "", body)


def explain_row(row: Row) -> str:
    """Why a row has no numbers, or what should be known about it."""
    if row["status"] == "waiting":
        return tr("not run yet")
    if row["status"] == "done":
        notes = (translate_message(note, "pages") for note in row["note"].split("; "))
        return "; ".join(map(translate_message, notes))
    return tr(
        "cannot be built: {reason}" if row["status"] == "refused" else "failed: {reason}",
        reason=translate_message(row["message"] or row["note"]),
    )


def shown(row: Row, measure: Measure) -> str:
    """A value of a row as its tile shows it."""
    return f"{row[measure.name]:.{measure.ends}f}"


def recipes(rows: Sequence[Row]) -> Section:
    """The recipe of each row, as it was run."""
    parts = []
    for row in rows:
        if not row["recipe"]:
            continue
        changes = " ".join(row["changes"]) or tr("the recipe as it is")
        parts.append(
            f"<details><summary><b>{escape(row['name'])}</b> <code>{escape(changes)}</code></summary>"
            f'<pre tabindex="0">{escape(row["recipe"])}</pre></details>'
        )
    about = tr(
        "Complete, every default written out: saved as a file, polyhead train makes the same run again."
    )
    return Section(tr("Recipes"), about, f'<div class="recipes">{"".join(parts)}</div>' if parts else "")
