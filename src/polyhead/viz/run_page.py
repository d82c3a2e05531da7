"""The HTML pages of training runs: one or all from their directories, or a report of given metrics.

Neither model nor torch is needed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from polyhead.core.errors import UserError
from polyhead.core.i18n import tr, translate_fact
from polyhead.evaluate.metrics import MAIN_TRANSLATION_METRICS
from polyhead.evaluate.run_facts import describe_final_scores, final_scores
from polyhead.introspect.attention_map import AttentionMap
from polyhead.viz.attention_page import attention_section
from polyhead.viz.html_page import (
    PageSection,
    Text,
    find_run_links,
    in_both_languages,
    read_asset,
    render_html,
    save_page,
    scroll_region,
)
from polyhead.viz.plot import Curve, downsample, format_number, line_figure
from polyhead.viz.run_record import (
    COUNTERS,
    RunRecord,
    StepTime,
    compare_times,
    format_seconds,
    predict_time,
    read_nll,
)
from polyhead.viz.samples import Samples, breakdown_section, examples_section, examples_table

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
    title: Text,
    facts: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    metrics: _Rows,
    examples: _Rows,
    attention: Sequence[AttentionMap] = (),
    lead: Text = "",
) -> Path:
    """Write one self-contained page.

    ``facts``: short ones become tiles, longer ones and mappings a table. ``metrics``: the rows of
    metrics.jsonl. ``examples``: source, output and reference.
    """

    @in_both_languages
    def render() -> str:
        sections = [
            headline_section(facts() if callable(facts) else facts),
            training_section(metrics),
            outputs_section(examples),
        ]
        if attention:
            sections.append(attention_section(attention))
        return render_html(title, lead, [section for section in sections if section.body], links=links)

    run = Path(path).parent
    links = find_run_links(run, command=format_explain_command(run))
    return save_page(path, render())


def format_explain_command(run: Path) -> str:
    """The command that writes the explanation of a run."""
    return f"polyhead explain {shlex.quote(str(run))}"


def headline_section(
    facts: Mapping[str, Any], details: Mapping[str, str] = MappingProxyType({}), lead: str = ""
) -> PageSection:
    """The main numbers as tiles, all other facts and ``details`` in a table."""
    short = {name: format_fact(value) for name, value in facts.items() if not isinstance(value, Mapping)}
    tiles = {name: text for name, text in short.items() if len(text) <= TILE_CHARS}
    rows = {name: text for name, text in short.items() if name not in tiles}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            rows |= {f"{name}: {key}": format_fact(inner) for key, inner in value.items()}
    body = facts_list(tiles, "tiles") if tiles else ""
    if rows := {**rows, **details}:
        body += f"<details><summary>{escape(tr('Details'))}</summary>{facts_list(rows)}</details>"
    return PageSection(tr("Result"), lead, body)


def facts_list(facts: Mapping[str, str], kind: str = "facts") -> str:
    """Names and values, one per line, or as tiles."""
    items = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in facts.items())
    return f'<dl class="{kind}">{items}</dl>'


def format_fact(value: Any) -> str:
    """A fact as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return format_number(value)


def metric_curves(metrics: _Rows, key: str) -> list[Curve]:
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


def training_section(metrics: _Rows) -> PageSection:
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


def outputs_section(examples: _Rows) -> PageSection:
    """Outputs and references; differences are marked."""
    n_right = sum(example["output"] == example["reference"] for example in examples)
    lead = tr("{right} of these {total} equal their reference.", right=n_right, total=len(examples))
    return PageSection(tr("Examples"), lead, examples_table(Samples(), examples) if examples else "")


_Row = Mapping[str, Any]  # of metrics.jsonl, or an example
_Rows = Sequence[_Row]

MAX_RUNS = 12  # maximum number of distinguishable curves
_IGNORED_KEYS = ("out", "data.cache_dir")  # keys that differ between any two runs


@in_both_languages
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


def runs_table(head: str, rows: str, kind: str = "") -> str:
    """An HTML table about several runs; of the kind "cards" each row is a card on a narrow screen."""
    return f'<table class="{f"runs {kind}".strip()}"><thead>{head}</thead><tbody>{rows}</tbody></table>'


STATE_TITLES = {
    "training": "training",
    "done": "done",
    "stopped early": "stopped early",
    "interrupted": "interrupted",
    "failed": "failed",
    "unknown": "unknown",
}
LOSS_HELP = (
    "The mean negative log-likelihood of a label, in nats, without label smoothing: training and "
    "validation on one scale. The training loss is measured with dropout and before the update. Point at a "
    "curve to read its values."
)
# keys that are plotted elsewhere, or not useful as a curve
_EXCLUDED_KEYS = ("loss", "nll", "ppl", "steps", "ms_per_step", "skipped", *COUNTERS)
_METRIC_NAMES = {
    "lr": "Learning rate",
    "grad_norm": "Gradient norm",
    "tokens_per_s": "Tokens / second",
    "texts_per_s": "Texts / second",
    "word_ppl": "Perplexity per word",
    "bits_per_char": "Bits per character",
    "f1": "F1",
    "micro_f1": "Micro F1",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "exact_match": "Exact match",
    "mcc": "Matthews correlation",
    "ndcg": "nDCG@10",
    "mrr": "Mean reciprocal rank",
    "ppl": "Perplexity",
}


class LiveVersion(NamedTuple):
    """State of a live page: the version that it shows, and whether updates will follow."""

    version: str
    is_training: bool


@in_both_languages
def render_run_page(record: RunRecord, live: LiveVersion | None = None, prefix: str = "") -> str:
    """The document; with ``live`` it polls the server for updates while the run trains.

    ``prefix`` leads from the page to the directory of the run.
    """
    samples, keys = record.samples, flatten_tree(record.recipe)
    sections = [
        result_section(record),
        loss_section([record]),
        measures_section([record]),
        plan_section(record),
        examples_section(samples),
        breakdown_section(samples),
    ]
    if samples.attention:
        sections.append(attention_section(samples.attention))
    summary = escape(tr("All keys of the recipe"))
    body = f"<details><summary>{summary}</summary>{facts_list(keys)}</details>" if keys else ""
    sections.append(PageSection(tr("Recipe"), "", body))
    links = find_run_links(record.directory, prefix, format_explain_command(record.directory))
    if live:  # of the service of all runs
        links |= {"home": "/"}
        links["pages"].pop("report.html", None)
    return render_document(record.name, describe_progress(record), sections, live, links)


def render_document(
    title: str,
    lead: str,
    sections: Sequence[PageSection],
    live: LiveVersion | None = None,
    links: Mapping[str, Any] | None = None,
) -> str:
    """A page with the style and the script of reports."""
    visible = [section for section in sections if section.body]
    if live and visible:
        marker = (
            f'<i hidden data-version="{escape(live.version)}" '
            f'data-training="{str(live.is_training).lower()}"></i>'
        )
        visible[0] = visible[0]._replace(body=marker + visible[0].body)
    style, script = read_asset("report.css"), read_asset("report.js")
    return render_html(
        title, lead, visible, style=style, script=script, allow_requests=live is not None, links=links
    )


def describe_progress(record: RunRecord) -> str:
    """One sentence about the state of the training."""
    values = {"step": f"{record.step:,}", "steps": f"{record.steps:,}"}
    return {
        "training": tr("Training: step {step} of {steps}.", **values),
        "done": tr("Training is done: {steps} steps.", **values),
        "stopped early": tr("Training stopped early at step {step} of {steps}: no more progress.", **values),
        "interrupted": tr("Training was interrupted at step {step} of {steps}.", **values),
        "failed": tr("Training failed at step {step} of {steps}.", **values),
    }.get(record.state, tr("Step {step} of {steps}.", **values))


def result_section(record: RunRecord) -> PageSection:
    """The scores of the finished run, then other numbers; the table of its README.md is in the details."""
    tiles = {measure_name(score.name): score.value for score in final_scores(record.facts)[1]}
    measures = {name: value for name, value in final_measures(record).items() if name not in tiles}
    state = {tr("State"): tr(STATE_TITLES.get(record.state, record.state))}
    scores, verdict = describe_final_scores(record.facts), translate_fact(record.facts.get("verdict", ""))
    lead = tr(". ").join(filter(None, [scores, verdict]))
    return headline_section(tiles | measures | state, translate_facts(record.facts), lead)


def final_measures(record: RunRecord) -> dict[str, str]:
    """The best validation loss and the last value of every other metric."""
    measures: dict[str, str] = {}
    losses = [
        (value, int(row["step"])) for row in record.rows("valid") if (value := read_nll(row)) is not None
    ]
    if losses:
        best, step = min(losses)
        measures[tr("Best validation loss")] = format_number(best)
        measures[tr("Best at step")] = format_number(step)
    for key, name in measure_names(record.metrics, "valid").items():
        last = [row[key] for row in record.rows("valid") if isinstance(row.get(key), int | float)][-1]
        measures[name] = format_number(float(last))
    return measures


def translate_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """The table of a run's README.md in the current language."""
    return {translate_fact(name): translate_fact(value) for name, value in facts.items()}


def loss_section(records: Sequence[RunRecord]) -> PageSection:
    """Training and validation loss without smoothing; for several runs, one chart each."""
    if len(records) == 1:
        curves = [
            Curve(tr(name), points) for split, name in (("train", "training"), ("valid", "validation"))
            if (points := loss_points(records[0], split))
        ]  # fmt: skip
        return PageSection(tr("Loss"), tr(LOSS_HELP), large_chart(tr("Loss"), curves))
    body = ""
    for split, title in (("valid", "Validation loss"), ("train", "Training loss")):
        body += large_chart(tr(title), [Curve(r.name, p) for r in records if (p := loss_points(r, split))])
    return PageSection(tr("Loss"), tr(LOSS_HELP), body)


def loss_points(record: RunRecord, split: str) -> list[tuple[float, float]]:
    """The loss without smoothing, by step."""
    rows = record.rows(split)
    return downsample([(float(row["step"]), value) for row in rows if (value := read_nll(row)) is not None])


def large_chart(title: str, curves: Sequence[Curve]) -> str:
    """A chart for wide and for narrow screens."""
    return line_figure(title, curves, tr("step"), *LARGE_SIZES) if curves else ""


def measure_names(metrics: Iterable[_Row], split: str | None = None) -> dict[str, str]:
    """{key: name} of the metrics that are numbers and have their own chart."""
    keys = {
        key: None
        for row in metrics
        if split in (None, row.get("split"))
        for key, value in row.items()
        if key not in _EXCLUDED_KEYS and isinstance(value, int | float)
    }
    return {key: measure_name(key) for key in keys}


def measure_name(key: str) -> str:
    """The display name of a metric."""
    if key.startswith("f1_"):
        return tr("F1 of {label}", label=key.removeprefix("f1_"))
    if key.startswith("loss_"):
        return tr("Loss of {corpus}", corpus=key.removeprefix("loss_"))
    return tr((SMALL_CHARTS | _METRIC_NAMES).get(key, key))


def add_learning_speed(rows: _Rows) -> list[_Row]:
    """The rows with the speed of training alone: the logged speed includes evaluations and checkpoints."""
    adjusted, previous = [], {"step": 0, "seconds": 0.0}
    for row in rows:
        if row.get("split", "train") == "train" and isinstance(row.get("seconds"), int | float):
            steps, seconds = row["step"] - previous["step"], row["seconds"] - previous["seconds"]
            keys = [key for key in ("tokens_per_s", "texts_per_s") if isinstance(row.get(key), int | float)]
            if seconds > 0 and row.get("ms_per_step") is not None:
                elapsed = steps * row["ms_per_step"] / 1e3
                row = {**row, **{key: row[key] * elapsed / seconds for key in keys}}
            previous = {"step": row["step"], "seconds": row["seconds"]}
        adjusted.append(row)
    return adjusted


def measures_section(records: Sequence[RunRecord]) -> PageSection:
    """Learning rate, speed and all other metrics, one small chart each."""
    titles: dict[str, str] = {}
    metrics = {record.name: add_learning_speed(record.metrics) for record in records}
    for rows in metrics.values():
        titles |= measure_names(rows)
    body = ""
    for key, name in titles.items():
        if len(records) == 1:
            curves = metric_curves(metrics[records[0].name], key)
        else:
            curves = [
                Curve(name, c.points) for name, rows in metrics.items() for c in metric_curves(rows, key)[-1:]
            ]
        if curves:
            positive = all(y >= 0 for c in curves for _, y in c.points)
            body += line_figure(name, curves, tr("step"), SMALL_SIZE, from_zero=positive)
    heading = tr("Measures, learning rate and speed")
    return PageSection(heading, "", f'<div class="small">{body}</div>' if body else "")


def plan_section(record: RunRecord) -> PageSection:
    """The time predicted from the first steps, and the actual time."""
    timeline = [
        (float(row["step"]), float(row["seconds"]))
        for row in record.rows("train")
        if row.get("seconds") is not None
    ]
    if not timeline:
        return PageSection("", "", "")
    step_times = [StepTime(int(step), seconds) for step, seconds in timeline]
    predicted = predict_time(step_times, record.steps)
    evaluations = sum(float(row.get("seconds") or 0) for row in record.rows("valid"))
    facts = {
        tr("Steps"): tr("{done} of {planned}", done=f"{record.step:,}", planned=f"{record.steps:,}"),
        tr("Training time so far"): format_seconds(timeline[-1][1]),
        tr("Evaluation time"): format_seconds(evaluations),
    }
    curves = [Curve(tr("actual"), downsample([(0.0, 0.0), *timeline]))]
    if predicted:
        facts[tr("Predicted for all steps")] = tr(
            "{time} (at step {step})", time=format_seconds(predicted.seconds), step=f"{predicted.step:,}"
        )
        curves.append(Curve(tr("predicted"), [(0.0, 0.0), (float(record.steps), predicted.seconds)]))
        if record.step < record.steps and record.state == "training":
            remaining = max(0.0, predicted.seconds - timeline[-1][1])
            facts[tr("Predicted time left")] = format_seconds(remaining)
        elif comparison := compare_times(step_times, record.step, timeline[-1][1]):
            facts[tr("Difference")] = f"{comparison[1]:+.0%}"
    lead = tr("Training time without evaluations, compared with the prediction from the first steps.")
    chart = line_figure(
        tr("Training time in seconds"), curves, tr("step"), (860, 260), (380, 230), from_zero=True
    )
    return PageSection(
        tr("Predicted and actual time"), lead, facts_list({k: v for k, v in facts.items() if v}) + chart
    )


def flatten_tree(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted keys and their values as text; unset values are left out."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten_tree(value, f"{prefix}{key}.")
        elif value is not None and value != []:
            flat[f"{prefix}{key}"] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return flat
