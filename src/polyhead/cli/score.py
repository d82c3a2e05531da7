"""``polyhead score``: how likely given translations are."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from polyhead.cli.lines import Counter, chunk_size, chunks, read_lines
from polyhead.errors import UserError


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained run")],
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="source text; alone, or -: lines of source, tab, translation"),
    ] = "-",
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="its translations, line by line")
    ] = None,
    chunk: Annotated[
        int, typer.Option(min=1, help="pairs read before the first is answered; 1 in a conversation")
    ] = 512,
) -> None:
    """Say how likely given translations are.

    Prints for each pair the logarithm (base e) of the translation's probability and, after a tab, the number of
    tokens it sums over, end of sentence included. The perplexity of all pairs goes to standard error.

    \b
    polyhead score runs/multi30k test.de test.en
    printf 'Ein Hund bellt.\\tA dog is barking.\\n' | polyhead score runs/multi30k
    """
    pairs = tsv_pairs(source) if target is None else parallel_pairs(source, target)
    from polyhead.run import load

    scorer = load(directory)
    counter, log_prob, tokens = Counter(), 0.0, 0
    for chunk_of_pairs in chunks(pairs, chunk_size(source, chunk)):
        sources, targets = (list(side) for side in zip(*chunk_of_pairs, strict=True))
        for score in scorer.score(sources, targets):
            print(f"{score.log_prob:.4f}\t{score.tokens}")
            log_prob, tokens = log_prob + score.log_prob, tokens + score.tokens
        print(end="", flush=True)
        counter.add(len(sources))
    counter.close()
    if tokens:
        mean = -log_prob / tokens
        print(f"perplexity {math.exp(min(mean, 700)):.4f} over {tokens:,} tokens", file=sys.stderr)


def parallel_pairs(source: str, target: str) -> Iterator[tuple[str, str]]:
    """The lines of two files side by side; the files must be equally long."""
    sources, targets = list(read_lines(source)), list(read_lines(target))
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {len(sources):,} lines, {target} has {len(targets):,}: they must match line by line"
        )
    return zip(sources, targets, strict=True)


def tsv_pairs(source: str) -> Iterator[tuple[str, str]]:
    """The two columns of each line."""
    for number, line in enumerate(read_lines(source), 1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(f"line {number}: expected source, tab, translation; got {len(columns)} columns")
        yield columns[0], columns[1]
