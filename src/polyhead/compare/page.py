"""The comparison as one self-contained page: tables, curves, quality against cost, and the recipe of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from polyhead.analysis.page import Section, asset, page, write
from polyhead.compare import table
from polyhead.compare.curves import curves, pareto
from polyhead.compare.plan import Plan
from polyhead.compare.results import alike
from polyhead.compare.sheets import cost, quality
from polyhead.compare.tasks.base import Measure
from polyhead.compare.unlearned import is_unlearned, said_unlearned
from polyhead.core.i18n import tr

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
        f"Comparison of {len(rows)} designs",
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
    pair = " to ".join(filter(None, (text.source_lang, text.target_lang)))
    return (
        f"The same text{f' ({pair})' if pair else ''} in the same order, "
        f"{f'{len(plan.seeds)} equal seeds' if len(plan.seeds) > 1 else 'the same seed'}, "
        f"and an equal budget: {plan.budget} for each design{', with equal parameters' if plan.match else ''}."
        + (f" {waiting} designs have not been run yet." if waiting else "")
    )


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
    tiles = [("designs", str(len(rows)), f"{len(done)} measured")]
    if done:
        chief = plan.task.measures[:2]
        if not whole:
            tiles.append((tr("verdict"), tr("none"), tr("no design has learned yet")))
        for measure in alike(done, chief) if whole else ():
            best = (min if measure.less_is_better else max)(whole, key=lambda row: row[measure.name])
            most = "lowest" if measure.less_is_better else "highest"
            tiles.append((f"{most} {measure.column}", shown(best, measure), best["name"]))
        for row in done:
            if row["base"]:
                rest = ", ".join(f"{measure.column} {shown(row, measure)}" for measure in chief[1:])
                tiles.append(("base", shown(row, chief[0]), rest))
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dt>{escape(of)}</dt></div>"
        for name, value, of in tiles
    )
    body = f'<dl class="tiles verdicts">{items}</dl>'
    said = [row for row in rows if row["status"] != "done" or row["note"]]
    if said:
        lines = "".join(
            f'<li class="{row["status"]}"><b>{escape(row["name"])}</b> {escape(table.said(row))}</li>'
            for row in said
        )
        body += f'<ul class="said">{lines}</ul>'
    if unlearned := said_unlearned(done, plan.task.measures):
        body += f'<ul class="said"><li class="failed">{escape(unlearned)}</li></ul>'
    return Section("Result", "", body)


def shown(row: Row, measure: Measure) -> str:
    """A value of a row as its tile shows it."""
    return f"{row[measure.name]:.{measure.ends}f}"


def recipes(rows: Sequence[Row]) -> Section:
    """The recipe of each row, as it was run."""
    parts = []
    for row in rows:
        if not row["recipe"]:
            continue
        changes = " ".join(row["changes"]) or "the recipe as it is"
        parts.append(
            f"<details><summary><b>{escape(row['name'])}</b> <code>{escape(changes)}</code></summary>"
            f"<pre>{escape(row['recipe'])}</pre></details>"
        )
    about = "Complete, every default written out: saved as a file, polyhead train makes the same run again."
    return Section("Recipes", about, f'<div class="recipes">{"".join(parts)}</div>' if parts else "")
