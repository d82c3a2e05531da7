"""HTML page of several training runs: charts of loss and metrics, final measures, recipe differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.viz.html_page import PageSection, scroll_region
from polyhead.viz.run_page import (
    STATE_TITLES,
    LiveVersion,
    final_measures,
    flatten_tree,
    loss_section,
    measures_section,
    render_document,
    translate_facts,
)
from polyhead.viz.run_record import RunRecord

MAX_RUNS = 12  # maximum number of distinguishable curves
_IGNORED_KEYS = ("out", "data.cache_dir")  # keys that differ between any two runs


def render_runs_page(records: Sequence[RunRecord], live: LiveVersion | None = None) -> str:
    """The HTML document."""
    if len(records) > MAX_RUNS:
        raise UserError(f"{len(records)} runs; a chart shows at most {MAX_RUNS}: pass fewer")
    records = disambiguate_names(records)
    measures = {
        record.name: {tr("State"): tr(STATE_TITLES.get(record.state, record.state)), **final_measures(record)}
        for record in records
    }
    facts = {record.name: translate_facts(record.facts) for record in records}
    sections = [
        table_section(tr("Final measures"), measures),
        loss_section(records),
        measures_section(records),
        table_section(tr("Results of the finished runs"), facts),
        table_section(tr("Differences between the recipes"), recipe_differences(records)),
    ]
    title = tr("{count} runs", count=len(records))
    return render_document(title, ", ".join(record.name for record in records), sections, live)


def disambiguate_names(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records, named by their full paths if directories share a name."""
    names = [record.name for record in records]
    return [
        record._replace(name=str(record.directory)) if names.count(record.name) > 1 else record
        for record in records
    ]


def recipe_differences(records: Sequence[RunRecord]) -> dict[str, dict[str, str]]:
    """For each run, the recipe keys that are not equal in all runs."""
    recipes = [flatten_tree(record.recipe) for record in records]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe if key not in _IGNORED_KEYS)
    different_keys = [key for key in keys if len({recipe.get(key) for recipe in recipes}) > 1]
    return {
        record.name: {key: recipe.get(key, "–") for key in different_keys}
        for record, recipe in zip(records, recipes, strict=True)
    }


def table_section(heading: str, columns: Mapping[str, Mapping[str, str]]) -> PageSection:
    """A table with a column per run and a row per name; empty if there are no names."""
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    head = "".join(f'<th scope="col">{escape(run)}</th>' for run in columns)
    rows = ""
    for name in names:
        cells = "".join(f"<td>{escape(column.get(name, '–'))}</td>" for column in columns.values())
        rows += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    table = runs_table(f"<tr><td></td>{head}</tr>", rows)
    return PageSection(heading, "", scroll_region(table, heading) if names else "")


def runs_table(head: str, rows: str) -> str:
    """An HTML table about several runs."""
    return f'<table class="runs"><thead>{head}</thead><tbody>{rows}</tbody></table>'
