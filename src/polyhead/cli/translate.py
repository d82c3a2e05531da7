"""``polyhead translate``: translate lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from polyhead.cli.document_io import (
    check_document_options,
    hint_format,
    read_document,
    translate_whole,
)
from polyhead.cli.line_io import (
    LineCounter,
    UnansweredLines,
    find_long_rows,
    open_line_inputs,
    print_warning,
    read_lines,
    read_lines_or_text,
    read_terminology,
    report_unknown_outputs,
    to_one_line,
)
from polyhead.cli.options import (
    Device,
    Dtype,
    EnsembleOption,
    OutputFile,
    ReadBatch,
    ShortlistOption,
    SourceLang,
    TargetLang,
    TerminologyOption,
    TrainedRun,
    check_kind,
    config_options,
    drop_none,
    load_run,
)
from polyhead.cli.output_file import check_output_path, open_output
from polyhead.config.generation_config import GenerationConfig, verb_settings
from polyhead.core.blank_text import clear_blank

_TOO_LONG = (
    "{count:,} tokens, the model's maximum is {most:,}: split it, or translate its beginning with --truncate"
)

if TYPE_CHECKING:
    from polyhead.generation.engine.request import Hypothesis
    from polyhead.introspect.word_alignment import AlignedPair
    from polyhead.run.run import Run
    from polyhead.tokenizers.tokenizer import Tokenizer


@config_options(GenerationConfig, *verb_settings("translate"), heading="Decoding")
def run(
    directory: TrainedRun,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|TEXT",
            help="path of a text with one sentence per line, also .gz, or a text, or - for standard input",
        ),
    ] = "-",
    *,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="random seed; the same seed gives the same sampled translations", show_default="0"
        ),
    ] = None,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    prefix: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="path of the forced prefix of each translation, line by line"),
    ] = None,
    terminology: TerminologyOption = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="print the score and a tab before each translation")
    ] = False,
    confidence: Annotated[
        bool,
        typer.Option(
            "--confidence",
            help="print a number from 0 to 1 and a tab before each translation: the geometric mean of the "
            "probabilities of its tokens",
        ),
    ] = False,
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments",
            help="print ||| and the aligned words after each translation, numbers of a source word and a "
            "word of the translation, from 0: 0-0 1-2; words are between white space, in scripts without "
            "spaces characters",
        ),
    ] = False,
    token_scores: Annotated[
        bool,
        typer.Option(
            "--token-scores",
            help="print ||| and the tokens with their probabilities after each translation: the:0.981",
        ),
    ] = False,
    document: Annotated[
        bool,
        typer.Option(
            "--document",
            help="translate a whole text: its paragraphs are split into sentences, white space stays",
        ),
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            help="translate a whole document of this format: text, html, markdown, srt or xliff; all but its "
            "text stays, inline markup is placed by the aligned words"
        ),
    ] = None,
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate", help="truncate lines that are too long for the model, and translate their beginning"
        ),
    ] = False,
    shortlist: ShortlistOption = False,
    output: OutputFile = None,
    read_batch: ReadBatch = 512,
    others: EnsembleOption = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
    **settings: Any,
) -> None:
    """Translate a file or standard input line by line.

    A blank line gives a blank line, so line n of the output belongs to line n of the input. So does a line
    that is too long for the model or has no output with its terms and its minimum length: it is named on
    standard error. With --temperature, --top-k, --top-p or
    --min-p, translations are sampled; otherwise the best ones are found by beam search.

    \b
    polyhead translate runs/multi30k test.de --output test.en
    polyhead translate runs/multi30k "Ein Hund bellt."
    polyhead translate runs/multi30k more.de --output more.en --temperature 1
    echo "Ein Hund bellt." | polyhead translate runs/multi30k --n-best 3 --scores
    polyhead translate runs/multi30k "Ein Hund bellt." --alignments --confidence
    polyhead translate runs/multi30k page.html --format html --output page.en.html
    """
    changes = settings | drop_none(seed=seed, source_lang=source_lang, target_lang=target_lang)
    n_best = changes.pop("n_best", None)
    check_kind(directory, "encoder-decoder")
    check_output_path(output, [source, prefix, terminology], directory, others)
    columns = Columns(scores, confidence, alignments, token_scores)
    if document or format:
        used = {"--prefix": prefix, "--n-best": (n_best or 1) > 1}
        used |= {f"--{name.replace('_', '-')}": value for name, value in columns._asdict().items()}
        check_document_options(source, format := format or "text", [name for name in used if used[name]])
        text = read_document(source, format)
        translator = load_run(directory, others, dtype, device, "encoder-decoder")
        terms = {} if terminology is None else {"terminology": read_terminology(terminology)}
        counter = LineCounter(prints_to_stdout=output is None)
        changes |= {"truncate": truncate, "shortlist": shortlist, "progress": counter.show_progress, **terms}
        translate_whole(translator, text, format, changes, output)
        return
    hint_format(source)
    is_text = any(map(str.isspace, source)) or not Path(source).suffix  # else a missing file is an error
    lines = read_lines_or_text(source) if is_text else read_lines(source)
    line_inputs = open_line_inputs(source, prefix, terminology)
    from polyhead.cli.swapped_sides import SwapCheck
    from polyhead.tokenizers.languages import with_languages
    from polyhead.tokenizers.scripts import warn_decomposed

    translator = load_run(directory, others, dtype, device, "encoder-decoder")
    tokenizer, max_len = translator.tokenizer, translator.config.max_len
    counter = LineCounter(prints_to_stdout=output is None)
    changes |= {"truncate": truncate, "shortlist": shortlist, "progress": counter.show_progress}
    n_best = translator.generation.n_best if n_best is None else n_best
    template = with_languages(tokenizer, source_lang, target_lang)
    for line_input in line_inputs:
        line_input.set_model(tokenizer, template, max_len)
        changes |= line_input.get_options()
    # reports an invalid option before the first line is read
    translator.translate([], n_best=n_best, **changes)
    if alignments or token_scores:
        translator.align_pairs([], [])
    swap_check, unanswered = SwapCheck(translator, source_lang, target_lang), UnansweredLines()
    unknown_rows = set[int]()
    lines = warn_decomposed(map(clear_blank, lines), tokenizer, print_warning)
    with open_output(output, "translations") as add:
        for texts in counter.iter_batches(lines, source, read_batch):
            swap_check.check_lines(texts)
            reasons: dict[int, str] = {}
            for line_input in line_inputs:
                reasons |= line_input.check_lines(texts, counter.lines)
                changes |= line_input.get_options()
            if not truncate:
                max_tokens = max_len - len(template.encoder_input(()))
                reasons |= find_long_rows(tokenizer.encode(texts), max_tokens, _TOO_LONG)
            texts = ["" if i in reasons else text for i, text in enumerate(texts)]
            translations = translate_lines(
                translator, texts, n_best, changes, counter.lines, reasons, unknown_rows, columns
            )
            add(translations, len(texts))
            unanswered.report({counter.lines + 1 + i: reason for i, reason in reasons.items()})
        unanswered.close()
        report_unknown_outputs(len(unknown_rows))
        for line_input in line_inputs:
            line_input.finish(counter.lines)


class Columns(NamedTuple):
    """What is printed before and after each translation."""

    scores: bool = False
    confidence: bool = False
    alignments: bool = False
    token_scores: bool = False


def format_translation(
    text: str, hypothesis: Hypothesis, reading: AlignedPair | None, tokenizer: Tokenizer, columns: Columns
) -> str:
    """Format a line of the output; ``reading`` has alignment and probabilities of tokens."""
    from polyhead.introspect.word_alignment import format_alignment
    from polyhead.tokenizers.display import visible_token

    line = text
    if columns.confidence:
        line = f"{hypothesis.confidence:.4f}\t{line}"
    if columns.scores:
        line = f"{hypothesis.score:.4f}\t{line}"
    if reading and columns.alignments:
        line += f" ||| {format_alignment(reading.alignment)}"
    if reading and columns.token_scores:
        tokens = zip(reading.tokens, reading.log_probs, strict=True)
        line += " ||| " + " ".join(f"{visible_token(tokenizer, i)}:{math.exp(p):.3f}" for i, p in tokens)
    return line


def translate_lines(
    run: Run,
    texts: list[str],
    n_best: int,
    changes: dict[str, Any],
    first_index: int,
    refusals: dict[int, str],
    unknown_rows: set[int],
    columns: Columns,
) -> Iterator[str]:
    """Yield lines of the output, ``n_best`` for each text.

    An empty text, one that is refused, and missing hypotheses give blank lines. ``first_index`` is the index
    of the first text in the whole input; ``unknown_rows`` gets the numbers of the outputs with an unknown
    token.
    """
    from polyhead.generation.detokenizer import decode_complete_chars
    from polyhead.run.translate_document import align_outputs

    rows = run.hypotheses(texts, n_best=n_best, row_offset=first_index, refusals=refusals, **changes)
    answered = {i: rows[i] for i, text in enumerate(texts) if text and i not in refusals}
    of_target = run.tokenizer.target_tokenizer
    readings: list[AlignedPair | None] = [None] * sum(map(len, answered.values()))
    if columns.alignments or columns.token_scores:
        languages = changes.get("source_lang"), changes.get("target_lang")
        sources = [texts[i] for i, hypotheses in answered.items() for _ in hypotheses]
        targets = [one.tokens for hypotheses in answered.values() for one in hypotheses]
        readings = [*align_outputs(run, sources, targets, languages)]
    remaining = iter(readings)
    for i in range(len(texts)):
        hypotheses = answered.get(i, [])
        outputs = decode_complete_chars(of_target, [hypothesis.tokens for hypothesis in hypotheses])
        for rank, (hypothesis, output) in enumerate(zip(hypotheses, outputs, strict=True)):
            if of_target.unknown_id in hypothesis.tokens:
                unknown_rows.add(n_best * (first_index + i) + rank)
            yield format_translation(to_one_line(output), hypothesis, next(remaining), of_target, columns)
        yield from [""] * (n_best - len(outputs))
