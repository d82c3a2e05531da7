"""``polyhead eval``: evaluate a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from polyhead.cli.options import (
    FROM_RUN,
    Device,
    Dtype,
    EnsembleOption,
    ShortlistOption,
    SourceLang,
    TargetLang,
    TerminologyOption,
    TrainedRun,
    config_options,
    load_run,
)
from polyhead.cli.output_file import check_output_path
from polyhead.config.generation_config import GenerationConfig, verb_settings
from polyhead.core.errors import UserError


def column_option(description: str) -> Any:
    """An option for a column of the files."""
    return typer.Option(metavar="COLUMN", help=description, show_default=FROM_RUN)


@config_options(GenerationConfig, *verb_settings("eval"), heading="Decoding")
def run(
    directory: TrainedRun,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES",
            help="source and target files, where further targets are further references, or one TSV or "
            "JSONL; plain text for a language model; "
            "labelled texts in TSV or JSONL for a classifier; default: the files of the recipe",
        ),
    ] = None,
    split: Annotated[
        Literal["test", "valid"] | None, typer.Option(help="split of the recipe's data", show_default="test")
    ] = None,
    *,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    terminology: TerminologyOption = None,
    shortlist: ShortlistOption = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="number of pairs evaluated, from the first")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="path of a file for the translations or labels, one per line; blank lines for "
            "skipped inputs",
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        column_option("classifiers, language models: column or key of the text; repeated for pairs"),
    ] = None,
    label: Annotated[str | None, column_option("classifiers: column or key of the label")] = None,
    source: Annotated[str | None, column_option("translation models: column or key of the source")] = None,
    target: Annotated[str | None, column_option("translation models: column or key of the reference")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="translation models: bleu, bleu-lc, chrf, ter, comet:PATH of a local checkpoint, or for "
            "summaries rouge-1, rouge-2, rouge-l; repeated for several",
            show_default="bleu, bleu-lc, chrf",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN|FILE",
            help="translation models: compare the scores with those of another run, or of a file of "
            "translations as written by --output, by paired bootstrap",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print JSON; the table goes to standard error")
    ] = False,
    others: EnsembleOption = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
    **settings: Any,
) -> None:
    """Evaluate a trained model: BLEU, chrF, TER, ROUGE, COMET, perplexity, accuracy.

    Translation models: BLEU and chrF of sacreBLEU, on the whole corpus of detokenised translations, with
    half the width of their 95 % interval (bootstrap of 1,000 samples) and their signatures, and perplexity
    per reference token, end of sentence included. Language models:
    perplexity per token and per word, bits per character. Classifiers: accuracy, mean F1 of the classes,
    Matthews correlation. Models that recover masked, corrupted or replaced tokens: loss, perplexity and
    accuracy of the recovered tokens.

    \b
    polyhead eval runs/multi30k
    polyhead eval runs/shakespeare --split valid
    polyhead eval runs/sst2 dev.tsv --output labels.txt
    polyhead eval runs/multi30k test.de test.en --beam-size 1 --output test.out
    polyhead eval runs/multi30k test.de reference1.en reference2.en
    polyhead eval runs/multi30k --against runs/larger --metric bleu --metric ter
    """
    import json
    import sys
    from contextlib import redirect_stdout

    from polyhead.cli.eval_metrics.dispatch import choose_evaluator, filter_options

    if files and split:
        raise UserError(
            f"--split {split} selects files of the recipe and cannot be combined with {files[0]!r}: "
            "remove one of them"
        )
    check_output_path(output, [*(files or []), terminology, str(against or "")], directory, others)
    loaded = load_run(directory, others, dtype, device)
    evaluator = choose_evaluator(loaded)
    options = settings | {
        "source_lang": source_lang,
        "target_lang": target_lang,
        "terminology": terminology,
        "shortlist": shortlist or None,
        "limit": limit,
        "output": output,
        "text": text or None,
        "label": label,
        "source": source,
        "target": target,
        "metric": metric or None,
        "against": against,
    }
    options = filter_options(evaluator, options)
    if against and not against.is_file():
        options["against"] = load_run(against, None, dtype, device)
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        measures = evaluator.evaluate(loaded, files or [], split or "test", **options)
    if as_json:
        print(json.dumps(measures, indent=2, ensure_ascii=False))
