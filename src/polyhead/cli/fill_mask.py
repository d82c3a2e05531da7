"""``polyhead fill-mask``: what stands behind the masks of texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.cli.answers import answers, output_place
from polyhead.cli.lines import Counter, chunk_size, lines_or_text, one_line
from polyhead.cli.options import Chunk, Device, Dtype, Output, Texts, With, opened
from polyhead.data.reading import chunks

if TYPE_CHECKING:
    from polyhead.analysis.filling import Fill


def run(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="directory of a trained masked language model")
    ],
    source: Texts = "-",
    top: Annotated[int, typer.Option(min=1, help="tokens shown for a mask, the likeliest first")] = 5,
    output: Output = None,
    chunk: Chunk = 64,
    others: With = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Say what stands behind the masks of texts.

    A mask is written as the tokenizer has it, or as <mask> or [MASK]; a text may have several. Prints a line for each
    token: its probability, the token and the text with it, separated by tabs. An empty line ends each mask.

    \b
    polyhead fill-mask runs/wikitext "The <mask> was built in 1920."
    polyhead fill-mask runs/wikitext masked.txt --top 1
    """
    output_place(output, [source], directory, others)
    given = lines_or_text(source)
    loaded = opened(directory, others, dtype, device)
    loaded.fill_mask([], top)  # a run that cannot is told before the first line comes
    counter = Counter(prints=output is None)
    with answers(output, "fillings") as add:
        for texts in chunks(given, chunk_size(source, chunk)):
            with counter.place():
                filled = loaded.fill_mask(texts, top)
            add(shown(filled), len(texts))
            counter.add(len(texts))
    counter.close()


def shown(filled: list[list[list[Fill]]]) -> Iterator[str]:
    """A line for each token of each mask of each text, and an empty one behind each mask."""
    for masks in filled:
        for fills in masks:
            for fill in fills:
                yield f"{fill.probability:.4f}\t{fill.token}\t{one_line(fill.text)}"
            yield ""
