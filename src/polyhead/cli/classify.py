"""``polyhead classify``: which class texts belong to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyhead.cli.answers import answers, output_place
from polyhead.cli.lines import Counter, chunk_size, lines_or_text, one_column
from polyhead.cli.options import Chunk, Device, Dtype, Output, Texts, With, opened
from polyhead.data.reading import chunks
from polyhead.errors import UserError

if TYPE_CHECKING:
    from polyhead.analysis.classes import Classified


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained run")],
    source: Texts = "-",
    all_classes: Annotated[
        bool, typer.Option("--all", help="the probability of every class, the likeliest first")
    ] = False,
    output: Output = None,
    chunk: Chunk = 512,
    others: With = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Say which class each text belongs to, a line for a line: the label, a tab, its probability.

    A line with a tab is a pair of texts; a blank line has a class too, as the model gives it without a word. Texts longer than the run's max_text_len, or the model's max_len, are cut, and counted on
    standard error. A reranker has no classes: of a question, a tab and a text it says how well the text answers, one number a line.

    \b
    polyhead classify runs/sst2 "a gripping, funny film"
    polyhead classify runs/trec questions.txt
    polyhead classify runs/reranker pairs.tsv | paste - pairs.tsv | sort -rn | head
    printf 'A dog barks.\\tAn animal makes a noise.\\n' | polyhead classify runs/pairs --all
    """
    output_place(output, [source], directory, others)
    given = lines_or_text(source)
    classifier = opened(directory, others, dtype, device)
    classifier.classify([])  # a run that cannot is told before the first line comes
    learned = classifier.recipe.data.text if classifier.recipe else []
    counter, cut = Counter(prints=output is None), 0
    with answers(output, "classes") as add:
        for lines in chunks(texts(given, len(learned)), chunk_size(source, chunk)):
            told = classifier.classified(lines)
            add((shown(found, all_classes) for found in told.found), len(lines))
            counter.add(len(lines))
            cut += told.cut
    counter.close()
    if cut:
        print(f"polyhead: cut to {told.most} tokens: {cut:,} of {counter.lines:,} texts", file=sys.stderr)


def shown(found: Classified, all_classes: bool) -> str:
    """The likeliest class, or all of them, with their probabilities; of a reranker its score."""
    if len(found.probabilities) == 1:
        return f"{found.probabilities[found.label]:.6f}"
    ranked = sorted(found.probabilities.items(), key=lambda pair: -pair[1])
    kept = ranked if all_classes else ranked[:1]
    return "\t".join(f"{one_column(label)}\t{probability:.4f}" for label, probability in kept)


def texts(lines: Iterator[str], learned: int) -> Iterator[Any]:
    """Lines as texts, or as pairs where there is a tab: as many as the run ``learned`` from, or all as the first (0)."""
    width = learned
    for number, line in enumerate(lines, 1):
        columns = line.split("\t")
        width = width or len(columns)
        if not line and width == 2:
            columns = ["", ""]  # of no words, as a blank line is where texts are single
        if len(columns) != width or width > 2:
            wanted = "one text or two" if number == 1 else f"{width} as before"
            wanted = f"{learned}, as the run learned from" if learned else wanted
            raise UserError(
                f"line {number}: {len(columns)} text{'s, separated by tabs' * (len(columns) > 1)}; wanted {wanted}"
            )
        yield line if width == 1 else tuple(columns)
