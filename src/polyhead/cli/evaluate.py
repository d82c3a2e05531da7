"""``polyhead eval``: how good a trained model is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from polyhead.cli.answers import output_place
from polyhead.cli.options import (
    AS_TRAINED,
    BatchTokens,
    BeamSize,
    CacheName,
    Device,
    Dtype,
    EarlyStopping,
    LengthPenalty,
    MinNewTokens,
    NoRepeat,
    Short,
    SourceLang,
    TargetLang,
    TermsFile,
    With,
    opened,
)
from polyhead.errors import UserError


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained run")],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES",
            help="source and target, or one TSV or JSONL; plain text for a language model; labelled texts in TSV or JSONL for a "
            "classifier; else those of the recipe",
        ),
    ] = None,
    split: Annotated[
        Literal["test", "valid"] | None, typer.Option(help="which files of the recipe", show_default="test")
    ] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    min_new_tokens: MinNewTokens = None,
    early_stopping: EarlyStopping = None,
    no_repeat_ngram_size: NoRepeat = None,
    cache: CacheName = None,
    batch_tokens: BatchTokens = None,
    source_lang: SourceLang = None,
    target_lang: TargetLang = None,
    terms: TermsFile = None,
    shortlist: Short = False,
    limit: Annotated[int | None, typer.Option(min=1, help="pairs measured, the first ones")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="write the translations, or labels, there, a line each, blank for what is skipped",
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="classifiers, language models: column or key of the text; twice for pairs",
            show_default=AS_TRAINED,
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="classifiers: column or key of the label", show_default=AS_TRAINED
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="translators: column or key of the source", show_default=AS_TRAINED
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="translators: that of the reference", show_default=AS_TRAINED),
    ] = None,
    others: With = None,
    dtype: Dtype = "fp32",
    device: Device = "auto",
) -> None:
    """Measure a trained model: BLEU, chrF, perplexity, accuracy.

    BLEU and chrF are sacreBLEU's, of the whole corpus, on detokenised translations, with their signatures.
    The perplexity is that of a reference token, end of sentence included. Of a language model: perplexity of a token
    and of a word, bits of a character. Of a classifier: accuracy, the mean F1 of the classes, Matthews correlation. Of a model
    that recovers what is hidden: loss, perplexity and accuracy of that.

    \b
    polyhead eval runs/multi30k
    polyhead eval runs/shakespeare --split valid
    polyhead eval runs/sst2 dev.tsv --output labels.txt
    polyhead eval runs/multi30k test.de test.en --beam-size 1 --output test.out
    """
    from polyhead.cli.measures.table import measure_of, understood

    if files and split:
        raise UserError(
            f"--split {split} means files of the recipe, and {files[0]!r} is given: leave one of them out"
        )
    output_place(output, [*(files or []), terms], directory, others)
    loaded = opened(directory, others, dtype, device)
    measure = measure_of(loaded)
    typed = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "min_new_tokens": min_new_tokens,
        "early_stopping": early_stopping,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "cache": cache,
        "batch_tokens": batch_tokens,
        "source_lang": source_lang,
        "target_lang": target_lang,
        "terms": terms,
        "shortlist": shortlist or None,
        "limit": limit,
        "output": output,
        "text": text or None,
        "label": label,
        "source": source,
        "target": target,
    }
    measure.show(loaded, files or [], split or "test", **understood(measure, typed))
