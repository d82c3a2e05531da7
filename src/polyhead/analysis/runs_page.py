"""Several training runs in one page: one chart each for loss and measures, the final measures, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from polyhead.analysis.page import Section, scrollable
from polyhead.analysis.run_page import (
    STATES,
    Live,
    document,
    final_measures,
    flatten,
    loss_section,
    measures_section,
    translate_facts,
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
    measures = {
        record.name: {tr("State"): tr(STATES.get(record.state, record.state)), **final_measures(record)}
        for record in records
    }
    facts = {record.name: translate_facts(record.facts) for record in records}
    sections = [
        table_section(tr("Final measures"), measures),
        loss_section(records),
        measures_section(records),
        table_section(tr("Results of the finished runs"), facts),
        table_section(tr("What differs in the recipes"), differing(records)),
    ]
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
    recipes = [flatten(record.recipe) for record in records]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe if key not in OWN)
    unlike = [key for key in keys if len({recipe.get(key) for recipe in recipes}) > 1]
    return {
        record.name: {key: recipe.get(key, "–") for key in unlike}
        for record, recipe in zip(records, recipes, strict=True)
    }


def table_section(heading: str, columns: Mapping[str, Mapping[str, str]]) -> Section:
    """A column a run, a row for each name that any run has; empty where there is none."""
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    head = "".join(f'<th scope="col">{escape(run)}</th>' for run in columns)
    rows = ""
    for name in names:
        cells = "".join(f"<td>{escape(column.get(name, '–'))}</td>" for column in columns.values())
        rows += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    table = table_html(f"<tr><td></td>{head}</tr>", rows)
    return Section(heading, "", scrollable(table, heading) if names else "")


def table_html(head: str, rows: str) -> str:
    """A table about several runs."""
    return f'<table class="runs"><thead>{head}</thead><tbody>{rows}</tbody></table>'
