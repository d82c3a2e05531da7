"""``polyhead score``: log-probabilities of texts or translations."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from polyhead.cli.line_io import LineCounter, UnansweredLines, print_warning, read_lines, read_lines_or_text
from polyhead.cli.options import Device, Dtype, EnsembleOption, OutputFile, TrainedRun, check_kind
from polyhead.cli.output_file import check_output_path, open_output
from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr

_TOO_LONG = "{count:,} tokens, the model's maximum is {most:,}"


def run(
    directory: TrainedRun,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="path of the source texts; without TARGET, or -: lines of source, tab, translation, "
            "or lines of text; or a text",
        ),
    ] = "-",
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="path of the translations, line by line")
    ] = None,
    output: OutputFile = None,
    read_batch: Annotated[
        int,
        typer.Option(
            min=1, help="number of pairs read and processed together; 1 if they are typed in a terminal"
        ),
    ] = 512,
    others: EnsembleOption = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Compute the log-probability of translations, or of lines of text.

    Prints for each pair the logarithm (base e) of the probability of the translation and, after a tab, the
    number of tokens it sums over, end of sentence included. The perplexity of all pairs is printed on
    standard error. A language model scores each line as the beginning of a text. A line that is too long for
    the model, or is no pair, gets a blank line and is named on standard error.

    \b
    polyhead score runs/multi30k test.de test.en
    printf 'Ein Hund bellt.\\tA dog is barking.\\n' | polyhead score runs/multi30k
    polyhead score runs/shakespeare lines.txt
    polyhead score runs/shakespeare "To be, or not to be"
    """
    check_kind(directory, "encoder-decoder", "decoder")
    check_output_path(output, [source, target], directory, others)
    if target is not None:
        inputs: Iterator[Any] = read_parallel_pairs(source, target)
    else:
        inputs = read_lines_or_text(source)
    from polyhead.cli.swapped_sides import SwapCheck
    from polyhead.evaluate.perplexity import loss_to_perplexity
    from polyhead.models.build import check_model_kind
    from polyhead.run.load import load
    from polyhead.tokenizers.scripts import warn_decomposed

    scorer = load([directory, *(others or [])], dtype=dtype, device=device)
    check_model_kind(scorer.config, ["encoder-decoder", "decoder"])
    is_language_model, refusals = scorer.config.kind == "decoder", dict[int, str]()
    if is_language_model and target is not None:
        raise UserError("this run is a language model: it scores the lines of one file, without TARGET")
    if is_language_model:
        inputs = zip(inputs, strict=True)
    elif target is None:
        command = shlex.join(["polyhead", "score", str(directory), source])
        inputs = split_tsv_pairs(inputs, refusals, command)
    # fails for an unsuitable model before the first line is read
    scorer.score([], None if is_language_model else [])
    swap_check, unanswered = None if is_language_model else SwapCheck(scorer), UnansweredLines()
    inputs = warn_decomposed(inputs, scorer.tokenizer, print_warning)
    counter, log_prob, tokens = LineCounter(prints_to_stdout=output is None), 0.0, 0
    with open_output(output, "scores") as add:
        for chunk_of_texts in counter.iter_batches(inputs, source, read_batch):
            columns = [list(column) for column in zip(*chunk_of_texts, strict=True)]
            if swap_check:
                swap_check.check_lines(columns[0])
            first_line = counter.lines + 1
            reasons = refusals | {
                first_line + i: tr(_TOO_LONG, count=count, most=scorer.config.max_len)
                for i, count in scorer.find_overlong(*columns).items()
            }
            refusals.clear()
            unanswered.report(reasons)
            rows = [i for i in range(len(chunk_of_texts)) if first_line + i not in reasons]
            scored: list[Any] = [[column[i] for i in rows] for column in columns]
            scores = scorer.score(*scored)
            lines = dict.fromkeys(range(len(chunk_of_texts)), "")
            for i, score in zip(rows, scores, strict=True):
                lines[i] = f"{score.log_prob:.4f}\t{score.tokens}"
                log_prob, tokens = log_prob + score.log_prob, tokens + score.tokens
            add(lines.values(), len(lines))
    unanswered.close()
    if tokens:
        mean = -log_prob / tokens
        print(f"perplexity {loss_to_perplexity(mean):.4f} over {tokens:,} tokens", file=sys.stderr)


def read_parallel_pairs(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Read the lines of two files as pairs; the files must have the same number of lines.

    A blank line at the end of only one file is ignored.
    """
    sources, targets = list(read_lines(source)), list(read_lines(target))
    longer = sources if len(sources) > len(targets) else targets
    if abs(len(sources) - len(targets)) == 1 and is_blank(longer[-1]):
        longer.pop()
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {len(sources):,} lines, {target} has {len(targets):,}: they must match line by "
            "line"
        )
    return zip(sources, targets, strict=True)


def split_tsv_pairs(
    lines: Iterable[str], refusals: dict[int, str], command: str
) -> Iterator[tuple[str, str]]:
    """Yield the two columns of each line; of one that has others, empty texts and the reason by its number.

    The first line must be a pair; otherwise the error suggests the ``command``, with a second file.
    """
    for number, line in enumerate(lines, 1):
        columns = line.split("\t") if line else ["", ""]  # a blank line is a pair of empty texts
        if len(columns) != 2:
            actual = "no tab" if len(columns) == 1 else f"{len(columns)} columns"
            reason = f"expected source, tab, translation; found {actual}"
            if number == 1:
                raise UserError(f"line 1: {reason}; to score two files: {command} TARGET")
            refusals[number], columns = reason, ["", ""]
        yield columns[0], columns[1]
