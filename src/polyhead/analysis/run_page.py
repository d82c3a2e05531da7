"""The page of one training run, from what lies in its directory: no model and no torch are needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from polyhead.analysis.attention_page import attention_section
from polyhead.analysis.charts import Curve, number, thin
from polyhead.analysis.forecast import Tick, compare_times, duration, forecast
from polyhead.analysis.page import Section, asset, page
from polyhead.analysis.report import SMALL, curves, headline, plot
from polyhead.analysis.run_record import COUNTERS, RunRecord, likelihood
from polyhead.analysis.samples_section import breakdown_section, examples_section
from polyhead.core.i18n import tr, translate_fact

STATES = {
    "training": "training",
    "done": "done",
    "stopped early": "stopped early",
    "interrupted": "interrupted",
    "failed": "failed",
    "unknown": "not known",
}
LOSS_ABOUT = (
    "The mean negative log-likelihood of a label, in nats, without label smoothing: training beside validation on one scale. "
    "Training text is read with dropout and before the update that learns from it. Point at a curve to read its values."
)
# keys that are drawn elsewhere, or are of no interest as a curve
DRAWN = ("loss", "nll", "ppl", "steps", "ms_per_step", "skipped", *COUNTERS)
NAMES = {
    "lr": "Learning rate",
    "grad_norm": "Norm of the gradient",
    "tokens_per_s": "Tokens / second",
    "texts_per_s": "Texts / second",
    "word_ppl": "Perplexity of a word",
    "bits_per_char": "Bits per character",
    "f1": "F1",
    "mcc": "Matthews correlation",
}


class Live(NamedTuple):
    """What a page must know to ask its service for news: the version that it shows, and whether more will come."""

    version: str
    training: bool


def run_page(record: RunRecord, live: Live | None = None) -> str:
    """The document; a ``live`` one asks the service for news while the run trains."""
    samples = record.samples
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
    sections.append(recipe_section(record))
    return document(record.name, lead_of(record), sections, live)


def document(title: str, lead: str, sections: Sequence[Section], live: Live | None = None) -> str:
    """A page with the style and the script of reports."""
    kept = [section for section in sections if section.body]
    if live and kept:
        follows = f'<i hidden data-version="{escape(live.version)}" data-training="{str(live.training).lower()}"></i>'
        kept[0] = kept[0]._replace(body=follows + kept[0].body)
    style, script = asset("report.css"), asset("report.js")
    return page(title, lead, kept, style=style, script=script, connects=live is not None)


def lead_of(record: RunRecord) -> str:
    """Where the training stands, in a sentence."""
    values = {"step": f"{record.step:,}", "steps": f"{record.steps:,}"}
    return {
        "training": tr("Training: step {step} of {steps}.", **values),
        "done": tr("Training is done: {steps} steps.", **values),
        "stopped early": tr(
            "Training stopped early at step {step} of {steps}: progress had ended.", **values
        ),
        "interrupted": tr("Training was interrupted at step {step} of {steps}.", **values),
        "failed": tr("Training failed at step {step} of {steps}.", **values),
    }.get(record.state, tr("Step {step} of {steps}.", **values))


def final_measures(record: RunRecord) -> dict[str, str]:
    """The best validation loss and the last value of whatever else was measured."""
    found: dict[str, str] = {}
    losses = [
        (value, int(row["step"])) for row in record.rows("valid") if (value := likelihood(row)) is not None
    ]
    if losses:
        best, step = min(losses)
        found[tr("Best validation loss")] = number(best)
        found[tr("Best at step")] = number(step)
    for key, name in measure_names(record.metrics, "valid").items():
        last = [row[key] for row in record.rows("valid") if isinstance(row.get(key), int | float)][-1]
        found[name] = number(float(last))
    return found


def result_section(record: RunRecord) -> Section:
    """The numbers at the top, and the table of the finished run's README.md, whatever stands there."""
    tiles = {tr("State"): tr(STATES.get(record.state, record.state))} | final_measures(record)
    section = headline(tiles)
    rows = facts_table(translate_facts(record.facts)) if record.facts else ""
    return Section(tr("Result"), "", section.body + rows)


def translate_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """The table of a run's README.md in the current language."""
    return {translate_fact(name): translate_fact(value) for name, value in facts.items()}


def facts_table(facts: Mapping[str, str]) -> str:
    """Names and values, one a line."""
    items = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in facts.items())
    return f'<dl class="facts">{items}</dl>'


def loss_section(records: Sequence[RunRecord]) -> Section:
    """Training beside validation, without smoothing; the validation loss alone where several runs are compared."""
    if len(records) == 1:
        drawn = [
            Curve(tr(name), points) for split, name in (("train", "training"), ("valid", "validation"))
            if (points := likelihoods(records[0], split))
        ]  # fmt: skip
        return Section(tr("Loss"), tr(LOSS_ABOUT), large_chart(tr("Loss"), drawn))
    body = ""
    for split, title in (("valid", "Validation loss"), ("train", "Training loss")):
        body += large_chart(tr(title), [Curve(r.name, p) for r in records if (p := likelihoods(r, split))])
    return Section(tr("Loss"), tr(LOSS_ABOUT), body)


def likelihoods(record: RunRecord, split: str) -> list[tuple[float, float]]:
    """The loss without smoothing by step."""
    rows = record.rows(split)
    return thin([(float(row["step"]), value) for row in rows if (value := likelihood(row)) is not None])


def large_chart(title: str, drawn: Sequence[Curve]) -> str:
    """A chart for wide and for narrow screens."""
    return plot(title, drawn, (860, 320), (380, 260), x_label=tr("step")) if drawn else ""


def measure_names(metrics: Iterable[Mapping[str, Any]], split: str | None = None) -> dict[str, str]:
    """The keys that hold numbers and get a chart of their own, and their names."""
    keys = {
        key: None
        for row in metrics
        if split in (None, row.get("split"))
        for key, value in row.items()
        if key not in DRAWN and isinstance(value, int | float)
    }
    return {key: measure_name(key) for key in keys}


def measure_name(key: str) -> str:
    """A key of metrics as people say it."""
    if key.startswith("f1_"):
        return tr("F1 of {label}", label=key.removeprefix("f1_"))
    return tr((SMALL | NAMES).get(key, key))


def with_learning_speed(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows with the speed of learning alone: as they are logged, evaluations and checkpoints count as time."""
    found, before = [], {"step": 0, "seconds": 0.0}
    for row in rows:
        if row.get("split", "train") == "train" and isinstance(row.get("seconds"), int | float):
            steps, seconds = row["step"] - before["step"], row["seconds"] - before["seconds"]
            keys = [key for key in ("tokens_per_s", "texts_per_s") if isinstance(row.get(key), int | float)]
            if seconds > 0:
                elapsed = steps * row["ms_per_step"] / 1e3
                row = {**row, **{key: row[key] * elapsed / seconds for key in keys}}
            before = {"step": row["step"], "seconds": row["seconds"]}
        found.append(row)
    return found


def measures_section(records: Sequence[RunRecord]) -> Section:
    """Learning rate, speed and everything else that was measured, small, one chart each."""
    found: dict[str, str] = {}
    metrics = {record.name: with_learning_speed(record.metrics) for record in records}
    for rows in metrics.values():
        found |= measure_names(rows)
    body = ""
    for key, name in found.items():
        if len(records) == 1:
            drawn = [Curve(tr(c.name), c.points) for c in curves(metrics[records[0].name], key)]
        else:
            drawn = [Curve(name, c.points) for name, rows in metrics.items() for c in curves(rows, key)[-1:]]
        if drawn:
            body += plot(name, drawn, (310, 190), from_zero=all(y >= 0 for c in drawn for _, y in c.points),
                         x_label=tr("step"))  # fmt: skip
    heading = tr("Measures, learning rate and speed")
    return Section(heading, "", f'<div class="small">{body}</div>' if body else "")


def plan_section(record: RunRecord) -> Section:
    """What the first steps predicted, beside what the training took."""
    took = [(float(row["step"]), float(row["seconds"])) for row in record.rows("train") if "seconds" in row]
    if not took:
        return Section("", "", "")
    ticks = [Tick(int(step), seconds) for step, seconds in took]
    predicted = forecast(ticks, record.steps)
    evaluations = sum(float(row.get("seconds") or 0) for row in record.rows("valid"))
    facts = {
        tr("Steps"): tr("{done} of {planned}", done=f"{record.step:,}", planned=f"{record.steps:,}"),
        tr("Time of learning so far"): duration(took[-1][1]),
        tr("Time of evaluations"): duration(evaluations),
    }
    drawn = [Curve(tr("actual"), thin([(0.0, 0.0), *took]))]
    if predicted:
        facts[tr("Predicted for all steps")] = tr(
            "{time} (at step {step})", time=duration(predicted.seconds), step=f"{predicted.at:,}"
        )
        drawn.append(Curve(tr("predicted"), [(0.0, 0.0), (float(record.steps), predicted.seconds)]))
        if record.step < record.steps and record.state == "training":
            left = max(0.0, predicted.seconds - took[-1][1])
            facts[tr("Time left by that prediction")] = duration(left)
        elif found := compare_times(ticks, record.step, took[-1][1]):
            facts[tr("Difference")] = f"{found[1]:+.0%}"
    about = tr(
        "The time of learning, evaluations left out, beside what the speed of the first steps predicted."
    )
    chart = plot(tr("Seconds of learning"), drawn, (860, 260), (380, 230), from_zero=True, x_label=tr("step"))
    return Section(
        tr("Plan against actual"), about, facts_table({k: v for k, v in facts.items() if v}) + chart
    )


def recipe_section(record: RunRecord) -> Section:
    """All keys of the recipe, folded."""
    keys = flatten(record.recipe)
    if not keys:
        return Section("", "", "")
    summary = escape(tr("All keys of the recipe"))
    return Section(tr("Recipe"), "", f"<details><summary>{summary}</summary>{facts_table(keys)}</details>")


def flatten(tree: Mapping[str, Any], under: str = "") -> dict[str, str]:
    """Keys with dots and their values as text; what is not set is left out."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{under}{key}.")
        elif value is not None and value != []:
            found[f"{under}{key}"] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return found
