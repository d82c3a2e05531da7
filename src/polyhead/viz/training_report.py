"""The report of a training run: results, training curves, errors and attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from polyhead.core.i18n import tr
from polyhead.evaluate.metrics import MAIN_TRANSLATION_METRICS
from polyhead.introspect.attention_map import AttentionMap
from polyhead.viz.attention_page import attention_section
from polyhead.viz.html_page import PageSection, render_html, save_page
from polyhead.viz.plot import Curve, downsample, format_number, line_figure
from polyhead.viz.run_record import read_nll
from polyhead.viz.samples import Samples, examples_table

TILE_CHARS = 18  # facts longer than this are in the table of details, not in tiles
LARGE_SIZES = (860, 320), (380, 260)  # pixels of a chart for wide and for narrow screens
SMALL_SIZE = (310, 190)  # of one of several charts in a row

# keys of metrics.jsonl with a small chart each
SMALL_CHARTS = {
    **{metric.name: metric.title for metric in MAIN_TRANSLATION_METRICS},
    "exact": "Exact match",
    "accuracy": "Accuracy",
    "lr": "Learning rate",
    "tokens_per_s": "Tokens / second",
}
_SPLIT_TITLES = {"train": "training", "valid": "validation"}


def write_report(
    path: Path | str,
    title: str,
    facts: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    examples: Sequence[Mapping[str, Any]],
    attention: Sequence[AttentionMap] = (),
    lead: str = "",
) -> Path:
    """Write one self-contained page.

    ``facts``: short ones become tiles, longer ones and mappings a table. ``metrics``: the rows of
    metrics.jsonl. ``examples``: source, output and reference.
    """
    sections = [headline_section(facts), training_section(metrics), outputs_section(examples)]
    if attention:
        sections.append(attention_section(attention))
    return save_page(path, render_html(title, lead, [section for section in sections if section.body]))


def headline_section(facts: Mapping[str, Any]) -> PageSection:
    """The main numbers as tiles, all other facts in a table."""
    short = {name: format_fact(value) for name, value in facts.items() if not isinstance(value, Mapping)}
    tiles = {name: text for name, text in short.items() if len(text) <= TILE_CHARS}
    rows = {name: text for name, text in short.items() if name not in tiles}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            rows |= {f"{name}: {key}": format_fact(inner) for key, inner in value.items()}
    body = facts_list(tiles, "tiles") if tiles else ""
    if rows:
        body += f"<details><summary>{escape(tr('Details'))}</summary>{facts_list(rows)}</details>"
    return PageSection(tr("Result"), "", body)


def facts_list(facts: Mapping[str, str], kind: str = "facts") -> str:
    """Names and values, one per line, or as tiles."""
    items = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in facts.items())
    return f'<dl class="{kind}">{items}</dl>'


def format_fact(value: Any) -> str:
    """A fact as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return format_number(value)


def metric_curves(metrics: Sequence[Mapping[str, Any]], key: str) -> list[Curve]:
    """The values of one key by step, one curve per split, with translated names; the loss is without
    smoothing.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    for row in metrics:
        value = read_nll(row) if key == "loss" else row.get(key)
        if isinstance(value, int | float):
            points.setdefault(str(row.get("split", "train")), []).append((row["step"], value))
    curves = [
        Curve(tr(_SPLIT_TITLES.get(split, split)), downsample(points[split])) for split in sorted(points)
    ]
    return [curve for curve in curves if curve.points]


def training_section(metrics: Sequence[Mapping[str, Any]]) -> PageSection:
    """A large chart of the loss, for wide and narrow screens, and small charts of the other metrics."""
    loss = metric_curves(metrics, "loss")
    body = line_figure(tr("Loss"), loss, tr("step"), *LARGE_SIZES) if loss else ""
    small_charts = [
        line_figure(tr(title), curves, tr("step"), SMALL_SIZE, from_zero=True)
        for key, title in SMALL_CHARTS.items()
        if (curves := metric_curves(metrics, key))
    ]
    if small_charts:
        body += f'<div class="small">{"".join(small_charts)}</div>'
    return PageSection(tr("Training"), tr("Point at a curve to read its values."), body)


def outputs_section(examples: Sequence[Mapping[str, Any]]) -> PageSection:
    """Outputs and references; differences are marked."""
    n_right = sum(example["output"] == example["reference"] for example in examples)
    lead = tr("{right} of these {total} equal their reference.", right=n_right, total=len(examples))
    return PageSection(tr("Examples"), lead, examples_table(Samples(), examples) if examples else "")
