"""``polyhead classify``: predict the class of texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyhead.cli.line_io import TruncatedLines, UnansweredLines, to_one_column
from polyhead.cli.options import Device, Dtype, EnsembleOption, OutputFile, ReadBatch, TextSource, TrainedRun
from polyhead.cli.output_file import open_output
from polyhead.cli.text_lines import open_texts
from polyhead.core.errors import UserError

if TYPE_CHECKING:
    from polyhead.evaluate.classify import ClassPrediction


def run(
    directory: TrainedRun,
    source: TextSource = "-",
    all_classes: Annotated[
        bool, typer.Option("--all", help="print the probability of every class, the most likely first")
    ] = False,
    output: OutputFile = None,
    read_batch: ReadBatch = 512,
    others: EnsembleOption = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Classify texts, one output line per input line: the label, a tab, its probability.

    A line with a tab is a pair of texts. A blank line is classified too, as an empty text. Texts longer than
    the run's embed_max_len, or the model's max_len, are truncated, and their number is printed on standard
    error. A model with several labels per text prints those that it predicts, each with its probability; the
    line may be blank. A reranker and a model of numbers have no classes: the line is one number, for a
    reranker, whose lines are a question, a tab and a text, the relevance of the text to the question. A line
    with more or fewer texts than the first gets a blank line and is named on standard error.

    \b
    polyhead classify runs/sst2 "a gripping, funny film"
    polyhead classify runs/trec questions.txt
    polyhead classify runs/reranker pairs.tsv | paste - pairs.tsv | sort -rn | head
    printf 'A dog barks.\\tAn animal makes a noise.\\n' | polyhead classify runs/pairs --all
    """
    classifier, texts, counter = open_texts(directory, source, output, others, dtype, device, "classifier")
    classifier.classify([])  # fails for an unsuitable model before the first line is read
    is_multi_label = classifier.config.problem_type == "multi_label_classification"
    text_columns = classifier.recipe.data.text if classifier.recipe else []
    refusals, unanswered, truncated = dict[int, str](), UnansweredLines(), TruncatedLines()
    inputs = split_columns(texts, len(text_columns), refusals)
    with open_output(output, "classes") as add:
        for lines in counter.iter_batches(inputs, source, read_batch):
            batch = classifier.predict_classes(lines)
            rows = (
                "" if number in refusals else format_classes(prediction, all_classes, is_multi_label)
                for number, prediction in enumerate(batch.predictions, counter.lines + 1)
            )
            add(rows, len(lines))
            unanswered.report(refusals)
            refusals.clear()
            truncated.add(classifier.tokenizer, lines, counter.lines, batch.n_truncated)
    unanswered.close()
    if truncated.count:
        truncated.report(batch.max_tokens, counter.lines)


def format_classes(prediction: ClassPrediction, all_classes: bool, is_multi_label: bool = False) -> str:
    """Format the most likely class, or all classes, with probabilities; for a reranker the score.

    With several labels per text, those that are predicted.
    """
    probabilities = prediction.probabilities
    if len(probabilities) == 1 and not is_multi_label:
        return f"{probabilities[prediction.label]:.6f}"
    labels = sorted(probabilities, key=lambda label: -probabilities[label])
    if not all_classes:
        labels = [*prediction.labels] if is_multi_label else labels[:1]
    return "\t".join(f"{to_one_column(label)}\t{probabilities[label]:.4f}" for label in labels)


def split_columns(lines: Iterator[str], num_columns: int, refusals: dict[int, str]) -> Iterator[Any]:
    """Yield lines as texts, or as pairs if they have a tab.

    Each line must have ``num_columns`` texts, as in training; 0: as many as the first line, which must be
    right. A later one with others is yielded as empty texts, with the reason by its number in ``refusals``.
    """
    width = num_columns
    for number, line in enumerate(lines, 1):
        columns = line.split("\t")
        width = width or len(columns)
        if not line and width == 2:
            columns = ["", ""]  # two empty texts; a blank line is one for single texts
        if len(columns) != width or width > 2:
            expected = "one text or two" if number == 1 else f"{width} as before"
            expected = f"{num_columns}, as in the run's training" if num_columns else expected
            num_texts = f"{len(columns)} text{'s, separated by tabs' * (len(columns) > 1)}"
            if number == 1:
                raise UserError(f"line 1: {num_texts}; expected {expected}")
            refusals[number], line, columns = f"{num_texts}; expected {expected}", "", ["", ""]
        yield line if width == 1 else tuple(columns)
