"""The report of a training run: results, training curves, errors and attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from polyhead.core.i18n import tr
from polyhead.introspect.attention_map import AttentionMap
from polyhead.viz.attention_page import attention_section
from polyhead.viz.html_page import PageSection, json_script, render_html, save_page
from polyhead.viz.run_record import read_nll
from polyhead.viz.samples import Samples
from polyhead.viz.samples_section import examples_table
from polyhead.viz.svg_charts import Curve, downsample, format_number, line_chart

TILE_CHARS = 18  # facts longer than this are in the table of details, not in tiles

# keys of metrics.jsonl with a small chart each
SMALL_CHARTS = {
    "bleu": "BLEU",
    "chrf": "chrF",
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
    body = ""
    if tiles:
        items = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(t)}</dd></div>" for n, t in tiles.items())
        body += f'<dl class="tiles">{items}</dl>'
    if rows:
        items = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(t)}</dd></div>" for n, t in rows.items())
        body += f'<details><summary>{escape(tr("Details"))}</summary><dl class="facts">{items}</dl></details>'
    return PageSection(tr("Result"), "", body)


def format_fact(value: Any) -> str:
    """A fact as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return format_number(value)


def metric_curves(metrics: Sequence[Mapping[str, Any]], key: str) -> list[Curve]:
    """The values of one key by step, one curve per split; the loss is without smoothing."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in metrics:
        value = read_nll(row) if key == "loss" else row.get(key)
        if isinstance(value, int | float):
            points.setdefault(str(row.get("split", "train")), []).append((row["step"], value))
    curves = [Curve(_SPLIT_TITLES.get(split, split), downsample(points[split])) for split in sorted(points)]
    return [curve for curve in curves if curve.points]


def training_section(metrics: Sequence[Mapping[str, Any]]) -> PageSection:
    """A large chart of the loss, for wide and narrow screens, and small charts of the other metrics."""
    loss = metric_curves(metrics, "loss")
    body = plot_figure("Loss", loss, (860, 320), (380, 260)) if loss else ""
    small_charts = [
        plot_figure(title, curves, (310, 190), from_zero=True)
        for key, title in SMALL_CHARTS.items()
        if (curves := metric_curves(metrics, key))
    ]
    if small_charts:
        body += f'<div class="small">{"".join(small_charts)}</div>'
    return PageSection(tr("Training"), tr("Point at a curve to read its values."), body)


def plot_figure(
    title: str,
    curves: Sequence[Curve],
    *sizes: tuple[int, int],
    from_zero: bool = False,
    x_label: str = "step",
) -> str:
    """A chart in one or several sizes (the style sheet shows the one that fits), its legend and its data.

    The title, the names of the curves and the label are translated.
    """
    title, x_label = tr(title), tr(x_label)
    curves = [curve._replace(name=tr(curve.name)) for curve in curves]
    names = [escape(curve.name) if len(curves) > 1 else "" for curve in curves]
    points = [[[round(x), float(f"{y:.4g}")] for x, y in curve.points] for curve in curves]
    legend = "".join(
        f'<span class="key c{i}">{name} <output>{format_number(curve.points[-1][1])}</output></span>'
        for i, (name, curve) in enumerate(zip(names, curves, strict=True))
    )
    charts = "".join(line_chart(curves, x_label, title, *size, from_zero) for size in sizes)
    kind = "plot sizes" if len(sizes) > 1 else "plot"
    return (
        f'<figure class="{kind}"><figcaption><b>{escape(title)}</b>{legend}'
        f'<span class="at">{escape(x_label)} <output>{format_number(max(c.points[-1][0] for c in curves))}</output></span></figcaption>'
        f"{charts}{json_script(points)}</figure>"
    )


def outputs_section(examples: Sequence[Mapping[str, Any]]) -> PageSection:
    """Outputs and references; differences are marked."""
    n_right = sum(example["output"] == example["reference"] for example in examples)
    lead = tr("{right} of these {total} equal their reference.", right=n_right, total=len(examples))
    return PageSection(tr("Examples"), lead, examples_table(Samples(), examples) if examples else "")
