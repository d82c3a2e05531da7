"""Samples as sections of a page: examples with coloured differences, measures by group, a table of confusions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from polyhead.analysis.charts import number
from polyhead.analysis.page import Section, scrollable
from polyhead.analysis.samples import Breakdown, Confusion, Samples
from polyhead.core.i18n import tr

OPEN = 12  # examples that are shown at once, the rest is folded
WORD = re.compile(r"\s+|[A-Za-z0-9À-ɏͰ-ӿ]+(?:['’-][A-Za-z0-9À-ɏͰ-ӿ]+)*|.", re.DOTALL)


def examples_section(samples: Samples) -> Section:
    """Outputs beside references; where they differ, the difference is coloured."""
    if not samples.examples:
        return Section("", "", "")
    right = sum(example["output"] == example["reference"] for example in samples.examples)
    lead = [tr(samples.about)]
    if samples.differences == "pieces":
        total = len(samples.examples)
        lead.append(tr("{right} of these {total} equal their reference.", right=right, total=total))
        lead.append(tr("Red: only in the output. Green: only in the reference."))
    shown, rest = samples.examples[:OPEN], samples.examples[OPEN:]
    if samples.differences == "pieces":  # they are sorted by length: show some of all lengths
        step = -(-len(samples.examples) // OPEN)
        shown = samples.examples[::step]
        rest = [example for i, example in enumerate(samples.examples) if i % step]
    body = table_html(samples, shown)
    if rest:
        more = escape(tr("{count} more examples", count=len(rest)))
        body += f"<details><summary>{more}</summary>{table_html(samples, rest)}</details>"
    return Section(tr("Examples"), " ".join(lead), body)


def table_html(samples: Samples, examples: Sequence[Mapping[str, Any]]) -> str:
    """Examples as a table; on a narrow screen each is a block."""
    columns = [escape(tr(name)) for name in samples.columns]
    judged = samples.differences != "none"
    mark = f'<th><span class="unseen">{escape(tr("equal"))}</span></th>' if judged else ""
    head = mark + "".join(f'<th scope="col">{name}</th>' for name in columns)
    rows = "".join(row_html(samples, example, columns) for example in examples)
    table = f'<table class="examples"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return scrollable(table, tr("Examples"))


def row_html(samples: Samples, example: Mapping[str, Any], columns: Sequence[str]) -> str:
    """One example."""
    output, reference = str(example["output"]), str(example["reference"])
    equal = output == reference
    sides = escape(output), escape(reference)
    if not equal and samples.differences == "pieces":
        sides = mark_words(output, reference, "del"), mark_words(reference, output, "ins")
    elif not equal and samples.differences == "whole":
        sides = f"<del>{sides[0]}</del>", f"<ins>{sides[1]}</ins>"
    if note := example.get("note"):
        sides = f'{sides[0]} <small class="note">{escape(str(note))}</small>', sides[1]
    cells = "".join(
        f'<td data-name="{name}" dir="auto">{html}</td>'
        for name, html in zip(columns, (escape(str(example["source"])), *sides), strict=True)
    )
    if samples.differences == "none":
        return f"<tr>{cells}</tr>"
    sign, word, kind = ("✓", tr("equal"), "yes") if equal else ("✗", tr("different"), "no")
    mark = f'<span class="{kind}" role="img" aria-label="{escape(word)}" title="{escape(word)}">{sign}</span>'
    return f'<tr class="{"right" if equal else "wrong"}"><td class="mark">{mark}</td>{cells}</tr>'


def mark_words(text: str, other: str, element: str) -> str:
    """The text, escaped, with the words (of scripts without blanks, the characters) that the other lacks marked."""
    words, others = WORD.findall(text), WORD.findall(other)
    pieces = difflib.SequenceMatcher(None, words, others, autojunk=False).get_opcodes()
    return "".join(
        escape("".join(words[a:b])) if kind == "equal" else f"<{element}>{escape(''.join(words[a:b]))}</{element}>"
        for kind, a, b, _, _ in pieces
        if a < b
    )  # fmt: skip


def breakdown_section(samples: Samples) -> Section:
    """Measures by length, by class or by kind, as bars; and which class is taken for which."""
    body = "".join(bars_html(one) for one in samples.breakdowns if one.groups)
    if samples.confusion:
        body += confusion_html(samples.confusion)
    return Section(tr("Errors by group"), "", f'<div class="groups">{body}</div>' if body else "")


def bars_html(one: Breakdown) -> str:
    """A bar a group, with the value and how many there are."""
    top = 100.0 if "%" in one.measure or one.measure == "chrF" else max(group.value for group in one.groups)
    rows = "".join(
        f'<tr><th scope="row" dir="auto">{escape(tr(group.name))}</th>'
        f'<td class="bar"><i style="width:{100 * group.value / (top or 1):.1f}%"></i></td>'
        f"<td>{number(float(f'{group.value:.4g}'))}</td><td>{group.size:,}</td></tr>"
        for group in one.groups
    )
    measure, by, count = tr(one.measure), tr(one.by), tr("number")
    caption = tr("{measure} by {by}", measure=measure, by=by)
    head = (
        f'<tr><th scope="col">{escape(by)}</th><td></td><th scope="col">{escape(measure)}</th>'
        f'<th scope="col">{escape(count)}</th></tr>'
    )
    return (
        f'<table class="bars"><caption>{escape(caption)}</caption><thead>{head}</thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def confusion_html(confusion: Confusion) -> str:
    """A row a label, a column a prediction; the deeper the colour, the larger the share of the row."""
    head = "".join(f'<th scope="col" dir="auto">{escape(label)}</th>' for label in confusion.labels)
    rows = ""
    for i, (label, counts) in enumerate(zip(confusion.labels, confusion.counts, strict=True)):
        cells = "".join(
            f'<td class="{"same" if i == j else "other"}" style="--share:{count / (sum(counts) or 1):.3f}">{count:,}</td>'
            for j, count in enumerate(counts)
        )
        rows += f'<tr><th scope="row" dir="auto">{escape(label)}</th>{cells}</tr>'
    caption = tr("Which class is taken for which: rows are labels, columns predictions")
    head = f'<tr><th scope="col">{escape(tr("label"))}</th>{head}</tr>'
    table = f'<table class="confusion"><thead>{head}</thead><tbody>{rows}</tbody></table>'
    return scrollable(f'<p class="caption">{escape(caption)}</p>{table}', caption)
