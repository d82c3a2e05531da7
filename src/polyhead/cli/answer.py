"""``polyhead answer``: answer questions with words of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyhead.cli.line_io import UnansweredLines, is_file, read_lines
from polyhead.cli.options import Device, Dtype, OutputFile, ReadBatch, TextSource, check_kind, check_texts
from polyhead.cli.output_file import check_output_path, open_output
from polyhead.cli.text_lines import open_texts, to_json_lines
from polyhead.core.blank_text import is_blank
from polyhead.core.i18n import tr


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="path of a trained run")],
    context: Annotated[str, typer.Option(help="text with the answers, or path of its file")],
    source: TextSource = "-",
    output: OutputFile = None,
    read_batch: ReadBatch = 32,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Answer questions with words of a text: one JSON object per input line.

    It has the question, the answer, its start and end in characters of the text, and score, its probability.
    The answer is empty if the text has none. Long texts are read in windows that overlap. A blank line gets a
    blank line and is named on standard error.

    \b
    polyhead answer runs/facts "When do we meet?" --context "We meet on May 3, 2024."
    polyhead answer runs/facts questions.txt --context article.txt --output answers.jsonl
    """
    check_kind(directory, kind := "question answerer")
    check_texts("answer", directory, question=source if is_blank(source) else None)
    check_output_path(output, [context], directory)
    text = "\n".join(read_lines(context)) if is_file(context) else context
    answerer, questions, counter = open_texts(directory, source, output, None, dtype, device, kind)
    unanswered, reason = UnansweredLines(), tr("{argument} is empty: expected text", argument="question")
    with open_output(output, "answers") as add:
        for lines in counter.iter_batches(questions, source, read_batch):
            unanswered.report(
                {i: reason for i, line in enumerate(lines, counter.lines + 1) if is_blank(line)}
            )
            texts = [line for line in lines if not is_blank(line)]
            answers = answerer.answer_all([(line, text) for line in texts])
            rows = ({"question": line} | one._asdict() for line, one in zip(texts, answers, strict=True))
            json_lines = to_json_lines(rows)
            add(("" if is_blank(line) else next(json_lines) for line in lines), len(lines))
    unanswered.close()
