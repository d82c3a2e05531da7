"""The comparison as one self-contained page: tables, curves, quality against cost, and the recipe of each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

from polyhead.analysis.charts import Curve, line_chart, number
from polyhead.analysis.page import Section, data, page, write
from polyhead.compare import table
from polyhead.compare.pareto import WORDS, Cost, Dot, costs, pareto_chart
from polyhead.compare.plan import Plan

Row = Mapping[str, Any]
WIDE, NARROW = (940, 400), (380, 300)
COLOURS = ("accent", "second", "good", "bad", "fifth", "sixth")
DASHES = ("none", "8 5", "2 4", "10 3 2 3")


def write_page(path: Path, rows: Sequence[Row], plan: Plan) -> Path:
    """Write the page of a comparison, finished or not."""
    done = [row for row in rows if row["status"] == "done"]
    sections = [
        result(rows, done, plan),
        quality(done, plan),
        cost(done),
        curves(done),
        pareto(done),
        recipes(rows),
    ]
    html = page(
        f"Comparison of {len(rows)} designs",
        lead(rows, plan),
        [section for section in sections if section.body],
        note(done),
        style=asset("page.css") + palette(done),
        script=asset("page.js"),
    )
    return write(path, html)


def asset(name: str) -> str:
    """The text of a file that lies beside this one."""
    return files("polyhead.compare").joinpath(name).read_text(encoding="utf-8")


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


def result(rows: Sequence[Row], done: Sequence[Row], plan: Plan) -> Section:
    """The answer in large, and what did not run."""
    tiles = [("designs", str(len(rows)), f"{len(done)} measured")]
    if done:
        best, bleu = min(done, key=lambda row: row["loss"]), max(done, key=lambda row: row["bleu"])
        tiles += [
            ("lowest loss", f"{best['loss']:.3f}", best["name"]),
            ("highest BLEU", f"{bleu['bleu']:.1f}", bleu["name"]),
        ]
        tiles += [("base", f"{row['loss']:.3f}", f"BLEU {row['bleu']:.1f}") for row in done if row["base"]]
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
    return Section("Result", "", body)


def quality(done: Sequence[Row], plan: Plan) -> Section:
    """How good each design is, with intervals drawn beside each other."""
    if not done:
        return Section("Quality", "", "")
    many = len(plan.seeds) > 1
    spans = {name: span_of(done, name) for name in ("bleu", "chrf", "loss")}
    base = next((row for row in done if row["base"]), None)
    head = ["Design", "Loss", "Perplexity", "95 %", "p", "BLEU", "95 %", "p", "chrF", "95 %", "p"]
    lines = []
    for i, row in enumerate(done):
        cells = [name_cell(i, row)]
        for name, digits in (("loss", 3), ("bleu", 2), ("chrf", 2)):
            spread = row[f"{name}_spread"]
            plus = f"<small>±{spread:.{digits}f}</small>" if many and spread is not None else ""
            cells.append(f"<td>{row[name]:.{digits}f}{plus}</td>")
            if name == "loss":
                cells.append(f"<td>{row['ppl']:.2f}</td>")
            cells.append(f"<td>{range_bar(row, name, spans[name], base)}</td>")
            cells.append(p_cell(row, name, base))
        lines.append(f'<tr class="row c{i}{" base" if row["base"] else ""}">{"".join(cells)}</tr>')
    split = {"test": "test", "valid": "validation"}[done[0]["split"]]
    about = (
        f"Loss and perplexity are of a token of the validation text; BLEU and chrF of the {split} text. Bars are 95 % "
        "intervals of 1,000 bootstrap resamples of the sentences, the line is the base. p is the chance of a difference "
        "from the base as large, by paired bootstrap (Koehn, 2004)"
        + (
            "; ± is the standard deviation over the seeds."
            if many
            else "; one seed says nothing about other seeds."
        )
    )
    return Section("Quality", about, framed(head, lines))


def span_of(done: Sequence[Row], name: str) -> tuple[float, float]:
    """The range that all intervals of a measure lie in."""
    ends = [end for row in done for end in row[f"{name}_interval"]]
    return min(ends), max(ends)


def range_bar(row: Row, name: str, span: tuple[float, float], base: Row | None) -> str:
    """An interval as a bar on the scale that all rows share."""
    width = (span[1] - span[0]) or 1.0

    def at(value: float) -> str:
        return f"{100 * (value - span[0]) / width:.1f}%"

    low, high = row[f"{name}_interval"]
    line = f'<u style="left:{at(base[name])}"></u>' if base else ""
    digits = 3 if name == "loss" else 1
    return (
        f'<span class="range" title="{low:.{digits}f} to {high:.{digits}f}">{line}'
        f'<i style="left:{at(low)};right:calc(100% - {at(high)})"></i><b style="left:{at(row[name])}"></b></span>'
    )


def p_cell(row: Row, name: str, base: Row | None) -> str:
    """The significance of a difference, coloured by its direction where it is below 0.05."""
    p = row[f"{name}_p"]
    if p is None or base is None:
        return '<td class="soft">base</td>' if row["base"] else "<td></td>"
    better = (row[name] < base[name]) == (name == "loss")
    look = ("better" if better else "worse") if p < 0.05 else "soft"
    return f'<td class="{look}">{p:.3f}</td>'


COSTS: list[tuple[str, str, Callable[[Row], str]]] = [
    ("Parameters", "parameters", lambda row: table.short(row["parameters"])),
    ("FLOPs a token", "flops_per_token", lambda row: table.short(row["flops_per_token"])),
    ("Steps", "", lambda row: f"{row['steps']:,.0f}"),
    ("Time", "seconds", lambda row: table.seconds(row["seconds"])),
    ("Tokens/s, training", "train_tokens_per_s", lambda row: table.short(row["train_tokens_per_s"])),
    ("Tokens/s, decoding", "decode_tokens_per_s", lambda row: table.short(row["decode_tokens_per_s"])),
    ("Memory", "memory", lambda row: table.memory(row["memory"])),
    ("Cache, B a token", "cache_per_token", table.cache),
    ("Skipped", "", lambda row: str(row["skipped"])),
    ("Dead units", "", lambda row: table.percent(row["dead"])),
]


def cost(done: Sequence[Row]) -> Section:
    """What each design costs; the bar behind a number is its share of the largest."""
    most = {key: max((row[key] or 0 for row in done), default=0) for _, key, _ in COSTS if key}
    lines = []
    for i, row in enumerate(done):
        cells = [name_cell(i, row)]
        for _, key, show in COSTS:
            share = (row[key] or 0) / most[key] if key and most[key] else 0
            cells.append(f'<td class="bar" style="--w:{share:.3f}">{show(row)}</td>')
        lines.append(f'<tr class="row c{i}{" base" if row["base"] else ""}">{"".join(cells)}</tr>')
    about = (
        "FLOPs: of a forward pass, encoder included, for each target token. Time: of training, evaluations left out. "
        "Decoding: greedy. Memory: the most that the process of training held. Cache: of one sequence; const: a state "
        "whose size does not grow. Skipped: steps whose loss was not finite. Dead: hidden feed-forward units that no "
        "token of the validation text activates."
    )
    return Section(
        "Cost", about, framed(["Design", *(title for title, _, _ in COSTS)], lines) if done else ""
    )


def name_cell(i: int, row: Row) -> str:
    """The number of a design, its colour and its name."""
    tag = '<span class="tag">base</span>' if row["base"] and row["name"] != "base" else ""
    return f'<th scope="row"><span class="badge">{i + 1}</span>{escape(row["name"])}{tag}</th>'


def framed(head: Sequence[str], lines: Sequence[str]) -> str:
    """A table that scrolls sideways where it does not fit."""
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    return (
        f'<div class="scroll framed"><table class="designs"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


AXES = {"steps": "steps", "time": "minutes of training", "FLOPs": "training FLOPs, 10^12"}


def curves(done: Sequence[Row]) -> Section:
    """Validation loss over steps, time and FLOPs: three charts, of which one is shown."""
    if not any(row["curves"] for row in done):
        return Section("Loss", "", "")
    body = choices({"over": list(AXES)})
    for number_of, (axis, label) in enumerate(AXES.items()):
        drawn = late([Curve(row["name"], points(row, axis)) for row in done])
        body += choice(f"{axis}", plot(drawn, label), hidden=number_of > 0)
    about = "Of the validation text, at every evaluation; its first fall is left out. Point at the chart to read the values, at a name to find its curve."
    return Section("Loss", about, f'<div class="chosen">{body}</div>')


def late(drawn: Sequence[Curve]) -> list[Curve]:
    """The curves without the steep beginning, whose scale would hide all differences."""
    ends = [curve.points[-1][1] for curve in drawn]
    highest = max(y for curve in drawn for _, y in curve.points)
    ceiling = min(ends) + max(0.3 * (highest - min(ends)), 1.3 * (max(ends) - min(ends)))
    return [Curve(c.name, [p for p in c.points if p[1] <= ceiling] or c.points[-1:]) for c in drawn]


def points(row: Row, axis: str) -> list[tuple[float, float]]:
    """The curve of a row, the mean over its seeds where these have the same steps."""
    found = []
    for several in zip_longest(*row["curves"]):
        there = [p for p in several if p is not None and p[2] is not None]
        if not there:
            continue
        step, seconds, loss = (sum(column) / len(there) for column in zip(*there, strict=True))
        x = {"steps": step, "time": seconds / 60, "FLOPs": step * flops_of_step(row) / 1e12}[axis]
        found.append((x, loss))
    return found


def flops_of_step(row: Row) -> float:
    """Of one update: forward and backward pass."""
    from polyhead.compare.measure import TRAINING

    return float(TRAINING * row["flops_per_token"] * row["tokens"] / row["steps"])


def plot(drawn: Sequence[Curve], x_label: str) -> str:
    """The curves in two sizes, with a legend that reads out values."""
    values = [[[float(f"{x:.5g}"), float(f"{y:.4g}")] for x, y in curve.points] for curve in drawn]
    legend = "".join(
        f'<span class="key c{i}"><span class="badge">{i + 1}</span>{escape(curve.name)} '
        f"<output>{number(curve.points[-1][1])}</output></span>"
        for i, curve in enumerate(drawn)
    )
    last = max(curve.points[-1][0] for curve in drawn)
    charts = "".join(line_chart(drawn, x_label, "validation loss", *size) for size in (WIDE, NARROW))
    return (
        f'<figure class="plot sizes many">{charts}<figcaption>{legend}<span class="at">{escape(x_label)} '
        f"<output>{number(last)}</output></span></figcaption>{data(values)}</figure>"
    )


def pareto(done: Sequence[Row]) -> Section:
    """Quality against each cost: charts for every pair, of which one is shown."""
    pairs = [(measure, cost) for measure in WORDS for cost in costs(done)]
    if len(done) < 2 or not pairs:
        return Section("Quality against cost", "", "")
    body = choices({"quality": [WORDS[m].title for m in WORDS], "cost": [c.title for c in costs(done)]})
    for i, (measure, cost) in enumerate(pairs):
        dots = dots_of(done, measure, cost)
        charts = "".join(pareto_chart(dots, WORDS[measure], cost, *size) for size in (WIDE, NARROW))
        figure = f'<figure class="sizes still">{charts}</figure>'
        body += choice(f"{WORDS[measure].title}|{cost.title}", figure, hidden=i > 0)
    about = "Up and to the left is better. The line joins the designs that no other one beats in both; numbers are those of the table."
    return Section("Quality against cost", about, f'<div class="chosen">{body}</div>')


def dots_of(done: Sequence[Row], measure: str, cost: Cost) -> list[Dot]:
    """The rows as points of one chart."""
    return [
        Dot(i, row["name"], cost.of(row), row[measure], tuple(row[f"{measure}_interval"]))
        for i, row in enumerate(done)
    ]


def choices(groups: Mapping[str, Sequence[str]]) -> str:
    """Buttons of which one in each group is pressed."""
    html = ""
    for group, names in groups.items():
        buttons = "".join(
            f'<button type="button" data-value="{escape(name)}" aria-pressed="{"true" if i == 0 else "false"}">'
            f"{escape(name)}</button>"
            for i, name in enumerate(names)
        )
        html += f'<div class="switch" role="group" aria-label="{escape(group)}"><span>{escape(group)}</span>{buttons}</div>'
    return f'<div class="switches">{html}</div>'


def choice(value: str, html: str, hidden: bool) -> str:
    """What is shown while the buttons of this value are pressed."""
    return f'<div data-choice="{escape(value)}"{" hidden" if hidden else ""}>{html}</div>'


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
