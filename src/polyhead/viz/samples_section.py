"""Page sections for samples: examples with coloured differences, metrics by group, a confusion matrix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from polyhead.core.i18n import tr
from polyhead.viz.html_page import PageSection, scroll_region
from polyhead.viz.plot import format_number
from polyhead.viz.samples import Breakdown, Confusion, Samples

_VISIBLE_EXAMPLES = 12  # examples shown at once; the rest is collapsed
_WORD = re.compile(r"\s+|[A-Za-z0-9À-ɏͰ-ӿ]+(?:['’-][A-Za-z0-9À-ɏͰ-ӿ]+)*|.", re.DOTALL)


def examples_section(samples: Samples) -> PageSection:
    """Outputs and references; differences are coloured."""
    if not samples.examples:
        return PageSection("", "", "")
    n_equal = sum(example["output"] == example["reference"] for example in samples.examples)
    lead = [tr(samples.description)]
    if samples.differences == "pieces":
        total = len(samples.examples)
        lead.append(tr("{right} of these {total} equal their reference.", right=n_equal, total=total))
        lead.append(tr("Red: only in the output. Green: only in the reference."))
    visible, hidden = samples.examples[:_VISIBLE_EXAMPLES], samples.examples[_VISIBLE_EXAMPLES:]
    if samples.differences == "pieces":  # examples are sorted by length: show some of each length
        step = -(-len(samples.examples) // _VISIBLE_EXAMPLES)
        visible = samples.examples[::step]
        hidden = [example for i, example in enumerate(samples.examples) if i % step]
    body = examples_table(samples, visible)
    if hidden:
        summary = escape(tr("{count} more examples", count=len(hidden)))
        body += f"<details><summary>{summary}</summary>{examples_table(samples, hidden)}</details>"
    return PageSection(tr("Examples"), " ".join(lead), body)


def examples_table(samples: Samples, examples: Sequence[Mapping[str, Any]]) -> str:
    """Examples as a table; on a narrow screen each is a block."""
    columns = [escape(tr(name)) for name in samples.columns]
    has_marks = samples.differences != "none"
    mark = f'<th><span class="unseen">{escape(tr("equal"))}</span></th>' if has_marks else ""
    head = mark + "".join(f'<th scope="col">{name}</th>' for name in columns)
    rows = "".join(example_row(samples, example, columns) for example in examples)
    table = f'<table class="examples"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return scroll_region(table, tr("Examples"))


def example_row(samples: Samples, example: Mapping[str, Any], columns: Sequence[str]) -> str:
    """One example as a table row."""
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
    """The escaped text, with the words that the other text lacks marked.

    In scripts without spaces, words are characters.
    """
    words, other_words = _WORD.findall(text), _WORD.findall(other)
    pieces = difflib.SequenceMatcher(None, words, other_words, autojunk=False).get_opcodes()
    return "".join(
        escape("".join(words[a:b])) if kind == "equal" else f"<{element}>{escape(''.join(words[a:b]))}</"
            f"{element}>"
        for kind, a, b, _, _ in pieces
        if a < b
    )  # fmt: skip


def breakdown_section(samples: Samples) -> PageSection:
    """Metrics by length, class or kind as bars, and the confusion matrix."""
    body = "".join(bars_html(breakdown) for breakdown in samples.breakdowns if breakdown.groups)
    if samples.confusion:
        body += confusion_html(samples.confusion)
    return PageSection(tr("Errors by group"), "", f'<div class="groups">{body}</div>' if body else "")


def bars_html(breakdown: Breakdown) -> str:
    """One bar per group, with the value and the size."""
    top = (
        100.0
        if "%" in breakdown.measure or breakdown.measure == "chrF"
        else max(group.value for group in breakdown.groups)
    )
    rows = "".join(
        f'<tr><th scope="row" dir="auto">{escape(tr(group.name))}</th>'
        f'<td class="bar"><i style="width:{100 * group.value / (top or 1):.1f}%"></i></td>'
        f"<td>{format_number(float(f'{group.value:.4g}'))}</td><td>{group.size:,}</td></tr>"
        for group in breakdown.groups
    )
    measure, group_by, count = tr(breakdown.measure), tr(breakdown.group_by), tr("number")
    caption = tr("{measure} by {by}", measure=measure, by=group_by)
    head = (
        f'<tr><th scope="col">{escape(group_by)}</th><td></td><th scope="col">{escape(measure)}</th>'
        f'<th scope="col">{escape(count)}</th></tr>'
    )
    return (
        f'<table class="bars"><caption>{escape(caption)}</caption><thead>{head}</thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def confusion_html(confusion: Confusion) -> str:
    """A row per label, a column per prediction; a darker colour is a larger share of the row."""
    head = "".join(f'<th scope="col" dir="auto">{escape(label)}</th>' for label in confusion.labels)
    rows = ""
    for i, (label, counts) in enumerate(zip(confusion.labels, confusion.counts, strict=True)):
        cells = "".join(
            f'<td class="{"same" if i == j else "other"}" '
            f'style="--share:{count / (sum(counts) or 1):.3f}">{count:,}</td>'
            for j, count in enumerate(counts)
        )
        rows += f'<tr><th scope="row" dir="auto">{escape(label)}</th>{cells}</tr>'
    caption = tr("Confusion matrix: rows are labels, columns predictions")
    head = f'<tr><th scope="col">{escape(tr("label"))}</th>{head}</tr>'
    table = f'<table class="confusion"><thead>{head}</thead><tbody>{rows}</tbody></table>'
    return scroll_region(f'<p class="caption">{escape(caption)}</p>{table}', caption)
