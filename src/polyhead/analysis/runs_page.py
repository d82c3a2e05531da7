"""Several training runs in one page: one chart each for loss and measures, the final measures, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from polyhead.analysis.page import Section
from polyhead.analysis.run_page import (
    STATES,
    Live,
    document,
    final_measures,
    flat,
    loss_section,
    measures_section,
)
from polyhead.analysis.run_record import RunRecord
from polyhead.core.i18n import tr
from polyhead.errors import UserError

MOST = 12  # runs whose curves can be told apart
OWN = ("out", "data.cache")  # keys that differ between any two runs


def runs_page(records: Sequence[RunRecord], live: Live | None = None) -> str:
    """The document."""
    if len(records) > MOST:
        raise UserError(f"{len(records)} runs; one chart shows at most {MOST}: name fewer")
    records = name_apart(records)
    tables = {
        tr("Final measures"): {
            record.name: {tr("State"): tr(STATES.get(record.state, record.state)), **final_measures(record)}
            for record in records
        },
        tr("Results of the finished runs"): {record.name: dict(record.facts) for record in records},
        tr("What differs in the recipes"): differing(records),
    }
    sections = [
        Section(heading, "", table_html(rows, heading))
        for heading, rows in tables.items()
        if any(rows.values())
    ]
    sections[1:1] = [loss_section(records), measures_section(records)]
    title = tr("{count} runs", count=len(records))
    return document(title, ", ".join(record.name for record in records), sections, live)


def name_apart(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records, by their whole paths where directories share a name."""
    names = [record.name for record in records]
    return [
        record._replace(name=str(record.directory)) if names.count(record.name) > 1 else record
        for record in records
    ]


def differing(records: Sequence[RunRecord]) -> dict[str, dict[str, str]]:
    """Of each run the keys of its recipe that are not equal in all."""
    recipes = [flat(record.recipe) for record in records]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe if key not in OWN)
    unlike = [key for key in keys if len({recipe.get(key) for recipe in recipes}) > 1]
    return {
        record.name: {key: recipe.get(key, "–") for key in unlike}
        for record, recipe in zip(records, recipes, strict=True)
    }


def table_html(
    rows: Mapping[str, Mapping[str, str]],
    label: str,
    links: Mapping[str, str] | None = None,
    choose: bool = False,
) -> str:
    """A row a run, a column for each name that any run has; names link to their pages, and may have a box to choose them."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in [tr("Run"), *columns])
    body = ""
    for run, row in rows.items():
        name = f'<a href="{escape(links[run])}">{escape(run)}</a>' if links else escape(run)
        if choose:
            about = escape(tr("Compare {run}", run=run))
            name = f'<input type="checkbox" name="run" value="{escape(run)}" aria-label="{about}"> {name}'
        cells = "".join(f"<td>{escape(row.get(column, '–'))}</td>" for column in columns)
        body += f'<tr><th scope="row">{name}</th>{cells}</tr>'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table class="runs">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
