"""Rows as text: two tables that fit into 120 columns, quality and cost, and a CSV file of all values."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.cells import cell_len

from polyhead.compare.io import ResultRow, ResultRows
from polyhead.compare.plan import ComparisonPlan
from polyhead.compare.results import baseline_rows, comparable_measures, describe_unlearned, is_unlearned
from polyhead.compare.tasks.base import Measures, QualityMeasure
from polyhead.core.atomic_io import replace_file
from polyhead.core.i18n import tr, translate_message
from polyhead.viz.plot import format_figures, format_short

_LINE_WIDTH = 120  # columns
_NAME_WIDTH = 32  # minimum width of the name column if names are that long
_CSV_EXCLUDED_KEYS = ("curves", "recipe", "signatures", "changes", "rank", "units", "baselines")
_SPLIT_NAMES = {"test": "test", "valid": "validation"}  # displayed names of splits


def format_table(rows: ResultRows, plan: ComparisonPlan, bold: bool = False) -> str:
    """Tables of quality and cost, and failures and notes; the base is marked with an arrow."""
    done = [row for row in rows if row["status"] == "done"]
    noted_rows = [row for row in rows if describe_row(row)]
    many = len(plan.seeds) > 1
    parts = []
    if done:
        measures = plan.task.measures
        other_columns = ", ".join(measure.column for measure in measures[1:])
        first = "loss, ppl" if measures[0].is_per_token else "loss"
        not_comparable = [
            measure.column for measure in measures if measure not in comparable_measures(done, measures)
        ]
        cost_columns = [
            (price.column, price.format_cell)
            for price in list_cost_columns(plan.task.page_words.counted_unit)
            if has_values(done, price.format_cell)
        ]
        text = _SPLIT_NAMES[done[0]["split"]]
        quality_rows = [*done, *baseline_rows(done, measures)]
        columns = _quality_columns(measures, many)
        if any(map(is_unlearned, done)):
            columns.insert(0, ("", lambda row: tr("not learned") if is_unlearned(row) else ""))
        parts.append(_format_grid(quality_rows, _fit_columns(quality_rows, columns), bold))
        parts.append(_format_grid(done, cost_columns, bold))
        parts.append(
            f"{first}: validation text. {other_columns}: {text} text, with the 95 % interval of 1,000 "
            "bootstrap resamples."
            + (
                f"\n{', '.join(not_comparable)}: not comparable between different tokenizers."
                if not_comparable
                else ""
            )
            + "\np: chance of a difference from the base as large (paired test); * below 0.05."
            + ("\n±: standard deviation over the seeds." if many else "")
        )
        if unlearned := describe_unlearned(done, measures):
            parts.append(textwrap.fill(unlearned, _LINE_WIDTH))
    if noted_rows:
        notes = (
            textwrap.fill(f"{row['name']}: {describe_row(row)}", _LINE_WIDTH, subsequent_indent="    ")
            for row in noted_rows
        )
        parts.append("\n".join(notes))
    return "\n\n".join(parts)


def has_values(rows: ResultRows, format_cell: Callable[[ResultRow], str]) -> bool:
    """Whether a column has a value in any row."""
    return any(format_cell(row) != "-" for row in rows)


def describe_row(row: ResultRow) -> str:
    """Reason why a row has no numbers, or its notes; '' if there is nothing to say."""
    if row["status"] == "waiting":
        return tr("not run yet")
    if row["status"] == "done":
        notes = (translate_message(note, "pages") for note in (row["message"], *row["note"].split("; ")))
        return "; ".join(translate_message(note) for note in notes if note)
    reason = translate_message(row["message"] or row["note"])
    return tr(
        "cannot be built: {reason}" if row["status"] == "refused" else "failed: {reason}", reason=reason
    )


def format_memory(value: float | None) -> str:
    """Format bytes in GiB or MiB."""
    return (
        "-" if value is None else f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
    )


def format_duration(value: float | None) -> str:
    """Format seconds as ``12:34`` or ``1:02:03``."""
    if value is None:
        return "-"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


ColumnSpec = tuple[str, Callable[[ResultRow], str]]


def _quality_columns(measures: Measures, show_spread: bool) -> list[ColumnSpec]:
    """Loss with perplexity, then other metrics with intervals; the spread over seeds for the first two."""

    def value_column(measure: QualityMeasure) -> ColumnSpec:
        return measure.column, lambda row: _format_fixed(row[measure.name], measure.digits)

    def spread_column(measure: QualityMeasure) -> ColumnSpec:
        return "±", lambda row: _format_fixed(row[f"{measure.name}_spread"], measure.interval_digits)

    def interval_column(measure: QualityMeasure) -> ColumnSpec:
        return "95 %", lambda row: "-".join(
            _format_fixed(end, measure.interval_digits) for end in row[f"{measure.name}_interval"] or ()
        )

    def p_column(measure: QualityMeasure) -> ColumnSpec:
        def format_p(row: ResultRow) -> str:
            p = row[f"{measure.name}_p"]
            return "" if p is None else f"{p:.3f}{'*' if p < 0.05 else ' '}"

        return "p", format_p

    columns: list[ColumnSpec] = []
    for i, of in enumerate(measures):
        columns += [value_column(of), *([spread_column(of)] if show_spread and i < 2 else [])]
        columns += [interval_column(of), p_column(of)] if i else [p_column(of)]
        if not i and of.is_per_token:
            columns.append(("ppl", lambda row: "-" if row["ppl"] is None else format_figures(row["ppl"], 3)))
    return columns


class CostColumn(NamedTuple):
    """A cost: its titles in the text table and on the page, its row key if drawn as a bar, its formatter."""

    column: str
    title: str
    key: str
    format_cell: Callable[[ResultRow], str]


def list_cost_columns(unit: str) -> list[CostColumn]:
    """Cost columns; ``unit`` is what is predicted: a token or a text."""
    speed = f"{unit.capitalize()}s/s, training"
    of_each = f"FLOPs/{'tok' if unit == 'token' else unit}"
    return [
        CostColumn("params", "Parameters", "parameters", lambda row: format_short(row["parameters"])),
        CostColumn(
            of_each, f"FLOPs per {unit}", "flops_per_token", lambda row: format_short(row["flops_per_token"])
        ),
        CostColumn("steps", "Steps", "", lambda row: f"{row['steps']:,.0f}"),
        CostColumn("time", "Time", "seconds", lambda row: format_duration(row["seconds"])),
        CostColumn(
            "train/s", speed, "train_tokens_per_s", lambda row: format_short(row["train_tokens_per_s"])
        ),
        CostColumn(
            "decode/s",
            "Tokens/s, decoding",
            "decode_tokens_per_s",
            lambda row: format_short(row["decode_tokens_per_s"]),
        ),
        CostColumn("memory", "Memory", "memory", lambda row: format_memory(row["memory"])),
        CostColumn(  # of the whole sequence if it is constant
            "cache B/tok",
            "Cache, B per token",
            "cache_per_token",
            lambda row: (
                f"{format_short(row['cache_constant'])} const"
                if row["cache_per_token"] == 0
                else format_short(row["cache_per_token"])
            ),
        ),
        CostColumn("skipped", "Skipped", "", lambda row: f"{row['skipped']}"),
        CostColumn(
            "dead", "Dead units", "", lambda row: "-" if row["dead"] is None else f"{100 * row['dead']:.1f}%"
        ),
    ]


def _fit_columns(rows: ResultRows, columns: Sequence[ColumnSpec]) -> list[ColumnSpec]:
    """Remove the last interval columns until the names fit; the page has all of them."""
    fitting = list(columns)
    name_width = min(_NAME_WIDTH, max(len(row["name"]) for row in rows))
    while _LINE_WIDTH - 3 - _columns_width(rows, fitting) < name_width:
        ends = [i for i, (title, _) in enumerate(fitting) if title == "95 %"]
        if not ends:
            break
        del fitting[ends[-1]]
    return fitting


def _columns_width(rows: ResultRows, columns: Sequence[ColumnSpec]) -> int:
    """Width of the number columns in characters."""
    return sum(2 + max(len(title), *(cell_len(show(row)) for row in rows)) for title, show in columns)


def _format_fixed(value: float | None, digits: int) -> str:
    """Format with fixed decimals, or with three digits if that is long, as for an early perplexity."""
    return "-" if value is None else f"{value:.{digits}f}" if abs(value) < 1e5 else format_short(value)


def _format_grid(rows: ResultRows, columns: Sequence[ColumnSpec], bold: bool) -> str:
    """Aligned columns, names on the left and numbers on the right."""
    head = ["", "design", *(title for title, _ in columns)]
    cells = [["->" if row["base"] else "", row["name"], *(show(row) for _, show in columns)] for row in rows]
    room = max(_NAME_WIDTH // 2, _LINE_WIDTH - 3 - _columns_width(rows, columns))
    for line in cells:
        if len(name := line[1]) > room:  # the middle is removed, since names differ at their ends
            line[1] = f"{name[: room - 1 - room // 3]}…{name[-(room // 3) :]}"
    widths = [max(cell_len(line[i]) for line in [head, *cells]) for i in range(len(head))]
    lines = []
    for line in [head, *cells]:
        blanks = [" " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True)]
        left_cells = [text + blank for text, blank in zip(line[:2], blanks[:2], strict=True)]
        right_cells = [blank + text for text, blank in zip(line[2:], blanks[2:], strict=True)]
        text = "  ".join([" ".join(left_cells), *right_cells]).rstrip()
        lines.append(f"\033[1m{text}\033[0m" if bold and line[0] else text)
    return "\n".join(lines)


def write_csv(path: Path, rows: ResultRows) -> None:
    """Write all values of all rows; an interval takes two columns."""
    flat = [_flatten_row(row) for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in flat for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    replace_file(path, out.getvalue().encode())


def _flatten_row(row: ResultRow) -> dict[str, Any]:
    flat = {f"{name}_baseline": baseline["value"] for name, baseline in (row.get("baselines") or {}).items()}
    for key, value in row.items():
        if key in _CSV_EXCLUDED_KEYS:
            continue
        if key.endswith("_interval"):
            name = key.removesuffix("_interval")
            flat[f"{name}_low"], flat[f"{name}_high"] = value or ("", "")
        else:
            flat[key] = value
    return flat
