"""The report of a training run: what came out, how it was learned, where it is wrong, what it looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from polyhead.analysis.attention_page import attention_section
from polyhead.analysis.charts import Curve, line_chart, number, thin
from polyhead.analysis.heat_map import AttentionMap
from polyhead.analysis.page import Section, data, page, write
from polyhead.analysis.run_record import likelihood
from polyhead.analysis.samples import Samples
from polyhead.analysis.samples_section import table_html
from polyhead.core.i18n import tr

TILE_CHARS = 18  # a fact longer than this is a row of the table of details, not a tile

# metrics.jsonl's keys that are drawn small, beside each other
SMALL = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact": "Exact match",
    "accuracy": "Accuracy",
    "lr": "Learning rate",
    "tokens_per_s": "Tokens / second",
}
SPLITS = {"train": "training", "valid": "validation"}


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

    ``facts``: short ones become tiles, longer ones and mappings a table. ``metrics``: the rows of metrics.jsonl.
    ``examples``: source, output and reference.
    """
    sections = [headline(facts), training(metrics), outputs(examples)]
    if attention:
        sections.append(attention_section(attention))
    return write(path, page(title, lead, [section for section in sections if section.body]))


def headline(facts: Mapping[str, Any]) -> Section:
    """The numbers first, in large; all other facts in a table."""
    short = {name: worded(value) for name, value in facts.items() if not isinstance(value, Mapping)}
    tiles = {name: text for name, text in short.items() if len(text) <= TILE_CHARS}
    rows = {name: text for name, text in short.items() if name not in tiles}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            rows |= {f"{name}: {key}": worded(inner) for key, inner in value.items()}
    body = ""
    if tiles:
        items = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(t)}</dd></div>" for n, t in tiles.items())
        body += f'<dl class="tiles">{items}</dl>'
    if rows:
        items = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(t)}</dd></div>" for n, t in rows.items())
        body += f'<details><summary>{escape(tr("Details"))}</summary><dl class="facts">{items}</dl></details>'
    return Section(tr("Result"), "", body)


def worded(value: Any) -> str:
    """A fact as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return number(value)


def curves(metrics: Sequence[Mapping[str, Any]], key: str) -> list[Curve]:
    """The values of one key by step, one curve a split that has any; the loss is that without smoothing."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in metrics:
        value = likelihood(row) if key == "loss" else row.get(key)
        if isinstance(value, int | float):
            points.setdefault(str(row.get("split", "train")), []).append((row["step"], value))
    found = [Curve(SPLITS.get(split, split), thin(points[split])) for split in sorted(points)]
    return [curve for curve in found if curve.points]


def training(metrics: Sequence[Mapping[str, Any]]) -> Section:
    """The loss in large, for wide and for narrow screens; what else was measured in small."""
    loss = curves(metrics, "loss")
    body = plot("Loss", loss, (860, 320), (380, 260)) if loss else ""
    small = [
        plot(title, drawn, (310, 190), from_zero=True)
        for key, title in SMALL.items()
        if (drawn := curves(metrics, key))
    ]
    if small:
        body += f'<div class="small">{"".join(small)}</div>'
    return Section(tr("Training"), tr("Point at a curve to read its values."), body)


def plot(
    title: str,
    drawn: Sequence[Curve],
    *sizes: tuple[int, int],
    from_zero: bool = False,
    x_label: str = "step",
) -> str:
    """A chart in one or several sizes (the style shows the one that fits), its legend and its data.

    The title, the names of the curves and the label are translated.
    """
    title, x_label = tr(title), tr(x_label)
    drawn = [curve._replace(name=tr(curve.name)) for curve in drawn]
    names = [escape(curve.name) if len(drawn) > 1 else "" for curve in drawn]
    points = [[[round(x), float(f"{y:.4g}")] for x, y in curve.points] for curve in drawn]
    legend = "".join(
        f'<span class="key c{i}">{name} <output>{number(curve.points[-1][1])}</output></span>'
        for i, (name, curve) in enumerate(zip(names, drawn, strict=True))
    )
    charts = "".join(line_chart(drawn, x_label, title, *size, from_zero) for size in sizes)
    kind = "plot sizes" if len(sizes) > 1 else "plot"
    return (
        f'<figure class="{kind}"><figcaption><b>{escape(title)}</b>{legend}'
        f'<span class="at">{escape(x_label)} <output>{number(max(c.points[-1][0] for c in drawn))}</output></span></figcaption>'
        f"{charts}{data(points)}</figure>"
    )


def outputs(examples: Sequence[Mapping[str, Any]]) -> Section:
    """Outputs beside references; where they differ, the difference is marked."""
    n_right = sum(example["output"] == example["reference"] for example in examples)
    about = tr("{right} of these {total} equal their reference.", right=n_right, total=len(examples))
    return Section(tr("Examples"), about, table_html(Samples(), examples) if examples else "")
