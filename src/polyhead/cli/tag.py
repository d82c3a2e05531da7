"""``polyhead tag``: find labeled spans in texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polyhead.cli.line_io import LineCounter, print_warning, read_lines_or_text
from polyhead.cli.options import Device, Dtype, OutputFile, ReadBatch, TextSource, check_kind, load_run
from polyhead.cli.output_file import check_output_path, open_output


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="path of a trained run")],
    source: TextSource = "-",
    output: OutputFile = None,
    read_batch: ReadBatch = 512,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Find the labeled spans of texts, such as names: one JSON object per input line.

    It has the text and its spans: text, label, start and end in characters, and score, the mean probability
    of its words. These lines can be corrected and trained on. Long texts are read in windows that overlap.

    \b
    polyhead tag runs/dates "We meet on May 3, 2024."
    polyhead tag runs/names articles.txt --output names.jsonl
    polyhead tag runs/names articles.txt | jq -r '.spans[] | [.label, .text] | @tsv'
    """
    check_kind(directory, "token classifier")
    check_output_path(output, [source], directory)
    texts = read_lines_or_text(source)
    from polyhead.tokenizers.scripts import warn_decomposed

    tagger = load_run(directory, None, dtype, device, "token classifier")
    texts = warn_decomposed(texts, tagger.tokenizer, print_warning)
    counter = LineCounter(prints_to_stdout=output is None)
    with open_output(output, "spans") as add:
        for lines in counter.iter_batches(texts, source, read_batch):
            spans_of_lines = tagger.tag(lines)
            rows = (
                {"text": line, "spans": [span._asdict() for span in spans]}
                for line, spans in zip(lines, spans_of_lines, strict=True)
            )
            add((json.dumps(row, ensure_ascii=False) for row in rows), len(lines))
