"""How good translations are, beside those of people."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.cli.lines import Counter, one_line
from polyhead.cli.measures.lines import (
    Split,
    column,
    no_files,
    say_verdict,
    show,
    training_tokens,
    write_answers,
)
from polyhead.cli.options import parts, typed
from polyhead.cli.swapped import SwapCheck
from polyhead.cli.terms_file import read_terms
from polyhead.core.i18n import tr
from polyhead.data.arrays import Ints
from polyhead.data.columns import format_like
from polyhead.data.corpus import CorpusReport, open_corpus, read_pairs
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baseline, count_tokens, translation_baselines, unigram_baselines
from polyhead.evaluate.training_counts import read_counts
from polyhead.run import Run
from polyhead.train.tasks.translation import corpus_of


def measure(
    run: Run,
    files: Sequence[str],
    split: Split,
    *,
    limit: int | None = None,
    output: Path | None = None,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    min_new_tokens: int | None = None,
    early_stopping: str | None = None,
    no_repeat_ngram_size: int | None = None,
    cache: str | None = None,
    batch_tokens: int | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    terms: str | None = None,
    shortlist: bool | None = None,
    source: str | None = None,
    target: str | None = None,
) -> None:
    """The table of a translator; what is not given is as the run was trained to be used, columns as it learned from."""
    sides = {"source": source, "target": target}
    columns = {side: column(name) for side, name in sides.items() if name is not None}
    entries = None if terms is None else read_terms(terms)
    sources, references, report = pairs(run, files, split, limit, columns)
    SwapCheck(run, source_lang, target_lang).read_pairs(sources, references)
    changes: dict[str, Any] = typed(
        beam_size=beam_size,
        length_penalty=length_penalty,
        min_new_tokens=min_new_tokens,
        early_stopping=early_stopping,
        no_repeat_ngram_size=no_repeat_ngram_size,
        batch_tokens=batch_tokens,
        terms=entries,
        shortlist=shortlist,
    ) | parts(cache=cache)
    if source_lang or target_lang:  # of the perplexity too
        run.tokenizer = run.tokenizer.between(source_lang, target_lang)
    counter, start = Counter(), time.perf_counter()
    lang = run.recipe.data.target_lang if run.recipe else ""
    measured = run.evaluate(sources, references, lang=lang, progress=counter.at, **changes)
    seconds = time.perf_counter() - start
    counter.add(len(sources))
    counter.close()
    counts = read_counts(run.directory)
    baselines = dict(translation_baselines(sources, references, lang, counts.target if counts else None))
    values = {score.name: score.value for score in measured.scores}
    for score in measured.scores:
        show(tr(score.name), score.value, score.signature, baselines.get(score.name))
    exact = sum(a == b for a, b in zip(measured.outputs, references, strict=True))
    remark = tr("% of the translations equal to their reference")
    show(tr("exact"), 100 * exact / len(references), remark)
    if output is not None:
        write_answers(output, map(one_line, measured.outputs), report)
    show_perplexity(run, sources, references, values, baselines)
    say_verdict(run, values, baselines)
    remark = tr("translations a second, {count:,} in {seconds:,.1f} s", count=len(sources), seconds=seconds)
    show(tr("speed"), len(sources) / seconds, remark)


def show_perplexity(
    run: Run,
    sources: list[str],
    references: list[str],
    values: dict[str, float],
    baselines: dict[str, Baseline],
) -> None:
    """The line of the perplexity, over the pairs that the model can hold whole; it joins the ``values``."""
    sides = zip(run.tokenizer.encode(sources), run.tokenizer.target.encode(references), strict=True)
    most = run.config.max_len - run.tokenizer.sides.most
    fits = [max(map(len, pair)) <= most for pair in sides]
    kept = [(a, b) for a, b, fit in zip(sources, references, fits, strict=True) if fit]
    if long := len(fits) - len(kept):
        left_out = tr(
            "{count:,} pairs have more than {most} tokens a side: translated from their beginning, and left out of "
            "the perplexity",
            count=long,
            most=most,
        )
        print(f"polyhead: {left_out}", file=sys.stderr)
    if kept:
        values["ppl"] = run.perplexity([a for a, _ in kept], [b for _, b in kept])
        counts = training_tokens(run)
        if counts is not None:
            asked = count_reference_tokens(run, [b for _, b in kept])
            baselines["ppl"] = unigram_baselines(counts, asked)["ppl"]
        show(tr("perplexity"), values["ppl"], tr("of a reference token"), baselines.get("ppl"))


def count_reference_tokens(run: Run, references: list[str]) -> Ints:
    """How often each token of the references, their ends included, is predicted: (V,)."""
    sides, size = run.tokenizer.sides, run.tokenizer.vocab_size
    around = [sides.end] if sides.forced else sides.said([])
    rows = map(np.array, [*run.tokenizer.target.encode(references), around * len(references)])
    return count_tokens((row.astype(np.int64) for row in rows), size)


def pairs(
    run: Run, files: Sequence[str], split: str, limit: int | None, columns: dict[str, str | int]
) -> tuple[list[str], list[str], CorpusReport]:
    """Sources and references of the files given, or of that split of the run's recipe, and what was skipped."""
    if columns and not files:
        raise UserError(
            "--source and --target are columns of files that are given: polyhead eval RUN FILE --source COLUMN"
        )
    if files:
        corpus = open_corpus(files, **(_read_as(run, files) | columns))
    elif run.recipe is not None and split in run.recipe.data.splits:
        corpus = corpus_of(run.recipe, split)
    else:
        raise no_files(split, "SOURCE TARGET", run)
    if columns and corpus.format == "parallel":
        raise UserError(
            f"{corpus.where} are a side each, without columns or keys: leave out --source and --target"
        )
    sources, references, report = read_pairs(corpus, limit)
    print(report.describe(), file=sys.stderr)
    return sources, references, report


def _read_as(run: Run, files: Sequence[str]) -> dict[str, Any]:
    """How files are read like those that a run learned from."""
    if run.recipe is None:
        return {}
    data = run.recipe.data
    format = format_like(files, data.train, data.format)
    return {"format": format, "source": data.source, "target": data.target}
