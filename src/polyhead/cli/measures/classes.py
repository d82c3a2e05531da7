"""How often a classifier is right."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyhead.analysis.classes import measure_classes
from polyhead.cli.lines import one_column
from polyhead.cli.measures.lines import Split, column, no_files, say_verdict, show, write_answers
from polyhead.core.i18n import tr
from polyhead.data.columns import format_like
from polyhead.data.labelled import Example, open_labelled, read_labelled
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baselines, class_baselines
from polyhead.evaluate.training_counts import read_counts
from polyhead.run import Run
from polyhead.train.tasks.classification import labelled_of


def measure(
    run: Run,
    files: Sequence[str],
    split: Split,
    *,
    batch_tokens: int = 4096,
    limit: int | None = None,
    output: Path | None = None,
    text: Sequence[str] = (),
    label: str | None = None,
) -> None:
    """The table of a classifier; ``text`` and ``label`` are columns, if not those that the recipe names."""
    columns: dict[str, Any] = {"text": [column(one) for one in text]} if text else {}
    columns |= {} if label is None else {"label": column(label)}
    learned = run.recipe.data.text if run.recipe else text
    if text and len(text) != len(learned):
        raise UserError(
            f"--text names {len(text)} column{'s' * (len(text) > 1)}; wanted {len(learned)}, as the run learned from: "
            f"{' '.join(f'--text {name}' for name in learned)}"
        )
    if files:
        own: dict[str, Any] = {}
        if run.recipe:
            data = run.recipe.data
            own = {
                "format": format_like(files, data.train, data.format),
                "text": data.text,
                "label": data.label,
            }
        given = open_labelled(files, **(own | columns))
    elif columns:
        raise UserError(
            "--text and --label are columns of files that are given: polyhead eval RUN FILE --text COLUMN"
        )
    elif run.recipe is None or (split == "test" and not run.recipe.data.test):
        raise no_files(split, "FILE", run)
    else:
        given = labelled_of(run.recipe, split)
    examples, report = read_labelled(given, run.config.labels, limit)
    print(report.describe(), file=sys.stderr)
    start = time.perf_counter()
    found = measure_classes(run.members, examples, run.generation, batch_tokens)
    seconds = time.perf_counter() - start
    if found.cut:
        cut = tr(
            "cut to {most} tokens: {cut:,} of {count:,} texts",
            most=found.most,
            cut=found.cut,
            count=len(examples),
        )
        print(f"polyhead: {cut}", file=sys.stderr)
    remarks = {
        "loss": tr("nats of a text"),
        "accuracy": tr("the share of {count:,} texts whose class is right", count=len(examples)),
        "f1": tr("the mean F1 of {count} classes", count=len(run.config.labels)),
        "mcc": tr("Matthews correlation"),
    }
    baselines = class_baselines_of(run, examples)
    for name, value in found.measures.items():
        label = name.removeprefix("f1_")
        remark = remarks.get(name, tr("F1 of the class {label}", label=label))
        show(tr(name), value, remark, baselines.get(name))
    say_verdict(run, found.measures, baselines)
    remark = tr("texts a second, in {seconds:,.1f} s with the tokenizer", seconds=seconds)
    show(tr("speed"), len(examples) / seconds, remark)
    if output is not None:
        write_answers(output, map(one_column, found.given), report)


def class_baselines_of(run: Run, examples: Sequence[Example]) -> Baselines:
    """Those of the most frequent class of the training text; none where the run directory does not tell it."""
    counts, labels = read_counts(run.directory), run.config.labels
    if counts is None or counts.labels.keys() != set(labels):
        return {}
    wanted = [labels.index(example.label) for example in examples]
    return class_baselines(counts.labels, wanted, labels)
