"""``polyhead score``: how likely given texts are."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from polyhead.cli.answers import answers, output_place
from polyhead.cli.lines import Counter, chunk_size, lines_or_text, read_lines
from polyhead.cli.options import Device, Dtype, Output, With
from polyhead.data.reading import chunks
from polyhead.errors import UserError


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained run")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="file of sources; alone, or -: lines of source, tab, translation, or lines of text; or a text itself",
        ),
    ] = "-",
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="file of their translations, line by line")
    ] = None,
    output: Output = None,
    chunk: Annotated[
        int, typer.Option(min=1, help="pairs read before the first is answered; 1 in a conversation")
    ] = 512,
    others: With = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Say how likely given translations are, or lines of text by themselves.

    Prints for each pair the logarithm (base e) of the translation's probability and, after a tab, the number of
    tokens it sums over, end of sentence included. The perplexity of all pairs goes to standard error. A language
    model scores each line, as the beginning of a text.

    \b
    polyhead score runs/multi30k test.de test.en
    printf 'Ein Hund bellt.\\tA dog is barking.\\n' | polyhead score runs/multi30k
    polyhead score runs/shakespeare lines.txt
    polyhead score runs/shakespeare "To be, or not to be"
    """
    output_place(output, [source, target], directory, others)
    if target is not None:
        given: Iterator[Any] = parallel_pairs(source, target)
    else:
        given = lines_or_text(source)
    from polyhead.analysis.recovered import perplexity_of
    from polyhead.cli.swapped import SwapCheck
    from polyhead.loading import load

    scorer = load([directory, *(others or [])], dtype=dtype, device=device)
    alone = scorer.config.kind == "decoder"
    if alone and target is not None:
        raise UserError("this run is a language model: it scores the lines of one file, without translations")
    if target is None:
        given = zip(given, strict=True) if alone else tsv_pairs(given)
    scorer.score([], None if alone else [])  # a run that cannot is told before the first line comes
    swap = None if alone else SwapCheck(scorer)
    counter, log_prob, tokens = Counter(prints=output is None), 0.0, 0
    with answers(output, "scores") as add:
        for chunk_of_texts in chunks(given, chunk_size(source, chunk)):
            sides = [list(side) for side in zip(*chunk_of_texts, strict=True)]
            if swap:
                swap.read(sides[0])
            with counter.place():
                scores = scorer.score(sides[0], None if alone else sides[1])
            add((f"{score.log_prob:.4f}\t{score.tokens}" for score in scores), len(scores))
            for score in scores:
                log_prob, tokens = log_prob + score.log_prob, tokens + score.tokens
            counter.add(len(chunk_of_texts))
    counter.close()
    if tokens:
        mean = -log_prob / tokens
        print(f"perplexity {perplexity_of(mean):.4f} over {tokens:,} tokens", file=sys.stderr)


def parallel_pairs(source: str, target: str) -> Iterator[tuple[str, str]]:
    """The lines of two files side by side; the files must be equally long."""
    sources, targets = list(read_lines(source)), list(read_lines(target))
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {len(sources):,} lines, {target} has {len(targets):,}: they must match line by line"
        )
    return zip(sources, targets, strict=True)


def tsv_pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The two columns of each line."""
    for number, line in enumerate(lines, 1):
        columns = line.split("\t")
        if len(columns) != 2:
            found = "no tab" if len(columns) == 1 else f"{len(columns)} columns"
            way = "; files of both sides are given one after the other: polyhead score RUN SOURCE TARGET"
            raise UserError(
                f"line {number}: expected source, tab, translation; found {found}{way * (number == 1)}"
            )
        yield columns[0], columns[1]
