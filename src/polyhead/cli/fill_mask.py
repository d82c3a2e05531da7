"""``polyhead fill-mask``: predict masked tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.cli.line_io import UnansweredLines, is_file, to_one_line
from polyhead.cli.options import Device, Dtype, EnsembleOption, OutputFile, ReadBatch, TextSource
from polyhead.cli.output_file import open_output
from polyhead.cli.text_lines import open_texts

if TYPE_CHECKING:
    from polyhead.evaluate.fill_mask import MaskPrediction


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="path of a trained masked language model")],
    source: TextSource = "-",
    top: Annotated[int, typer.Option(min=1, help="number of tokens per mask, the most likely first")] = 5,
    output: OutputFile = None,
    read_batch: ReadBatch = 64,
    others: EnsembleOption = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Predict masked tokens.

    A mask is written as the tokenizer's mask token, or as <mask> or [MASK]; a text may have several. Prints a
    line for each predicted token: its probability, the token and the text with it, separated by tabs. An
    empty line ends the list of each mask. A line of a file without a mask, or that is too long for the model,
    gets an empty list and is named on standard error.

    \b
    polyhead fill-mask runs/wikitext "The <mask> was built in 1920."
    polyhead fill-mask runs/wikitext masked.txt --top 1
    """
    loaded, lines, counter = open_texts(directory, source, output, others, dtype, device, "encoder")
    loaded.fill_mask([], top)  # fails for an unsuitable model before the first line is read
    unanswered = UnansweredLines()
    with open_output(output, "fillings") as add:
        for texts in counter.iter_batches(lines, source, read_batch):
            # a text that is an argument is refused
            reasons = loaded.find_unfillable(texts) if source == "-" or is_file(source) else {}
            unanswered.report({counter.lines + 1 + i: reason for i, reason in reasons.items()})
            rows = [i for i in range(len(texts)) if i not in reasons]
            predictions: list[list[list[MaskPrediction]]] = [[[]] for _ in texts]  # an empty list of tokens
            with counter.renumber_errors():
                for i, masks in zip(rows, loaded.fill_mask([texts[i] for i in rows], top), strict=True):
                    predictions[i] = masks
            add(format_fills(predictions), len(texts))
    unanswered.close()


def format_fills(predictions: list[list[list[MaskPrediction]]]) -> Iterator[str]:
    """Yield a line for each predicted token of each mask of each text, and an empty line after each mask."""
    for masks in predictions:
        for fills in masks:
            for fill in fills:
                yield f"{fill.probability:.4f}\t{fill.token}\t{to_one_line(fill.text)}"
            yield ""
