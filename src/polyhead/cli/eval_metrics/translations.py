"""Evaluate a translator against reference translations."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.cli.eval_metrics.printing import (
    Split,
    load_token_counts,
    no_files_error,
    parse_column,
    print_measure,
    print_verdict,
    write_output_lines,
)
from polyhead.cli.line_io import LineCounter, to_one_line
from polyhead.cli.options import given_options, given_parts
from polyhead.cli.swapped_sides import SwapCheck
from polyhead.cli.terminology_file import read_terminology
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.data.readers.parallel_corpus import CorpusReport, open_corpus, read_pairs
from polyhead.data.readers.tabular import inherit_format
from polyhead.data.stores.arrays import IdArray
from polyhead.evaluate.baselines import Baseline, count_tokens, translation_baselines, unigram_baselines
from polyhead.evaluate.training_counts import read_counts
from polyhead.run.run import Run
from polyhead.tokenizers.languages import with_languages
from polyhead.train.tasks.translation import open_split_corpus


def evaluate_translator(
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
    terminology: str | None = None,
    shortlist: bool | None = None,
    source: str | None = None,
    target: str | None = None,
) -> None:
    """Print the table of a translator; options and columns default to those of the run."""
    sides = {"source": source, "target": target}
    columns = {side: parse_column(name) for side, name in sides.items() if name is not None}
    entries = None if terminology is None else read_terminology(terminology)
    sources, references, report = load_pairs(run, files, split, limit, columns)
    SwapCheck(run, source_lang, target_lang).check_pairs(sources, references)
    changes: dict[str, Any] = given_options(
        beam_size=beam_size,
        length_penalty=length_penalty,
        min_new_tokens=min_new_tokens,
        early_stopping=early_stopping,
        no_repeat_ngram_size=no_repeat_ngram_size,
        batch_tokens=batch_tokens,
        terminology=entries,
        shortlist=shortlist,
    ) | given_parts(cache=cache)
    if source_lang or target_lang:  # also for the perplexity
        template = with_languages(run.tokenizer, source_lang, target_lang)
        run.tokenizer = run.tokenizer.with_seq2seq_template(template)
    counter, start = LineCounter(), time.perf_counter()
    lang = run.recipe.data.target_lang if run.recipe else ""
    result = run.evaluate(sources, references, lang=lang, progress=counter.show_progress, **changes)
    seconds = time.perf_counter() - start
    counter.add(len(sources))
    counter.close()
    counts = read_counts(run.directory)
    baselines = dict(translation_baselines(sources, references, lang, counts.target if counts else None))
    values = {score.name: score.value for score in result.scores}
    for score in result.scores:
        print_measure(tr(score.name), score.value, score.signature, baselines.get(score.name))
    num_exact = sum(a == b for a, b in zip(result.outputs, references, strict=True))
    remark = tr("% of the translations equal to their reference")
    print_measure(tr("exact"), 100 * num_exact / len(references), remark)
    if output is not None:
        write_output_lines(output, map(to_one_line, result.outputs), report)
    print_perplexity(run, sources, references, values, baselines)
    print_verdict(run, values, baselines)
    remark = tr("translations a second, {count:,} in {seconds:,.1f} s", count=len(sources), seconds=seconds)
    print_measure(tr("speed"), len(sources) / seconds, remark)


def print_perplexity(
    run: Run,
    sources: list[str],
    references: list[str],
    values: dict[str, float],
    baselines: dict[str, Baseline],
) -> None:
    """Print the perplexity over the pairs that fit into the model, and add it to ``values``."""
    encoded_pairs = zip(
        run.tokenizer.encode(sources), run.tokenizer.target_tokenizer.encode(references), strict=True
    )
    max_len = run.config.max_len - run.tokenizer.seq2seq_template.max_special
    fits = [max(map(len, pair)) <= max_len for pair in encoded_pairs]
    pairs = [(a, b) for a, b, fit in zip(sources, references, fits, strict=True) if fit]
    if num_long := len(fits) - len(pairs):
        message = tr(
            "{count:,} pairs have more than {most} tokens a side: translated from their beginning, and left out of "
            "the perplexity",
            count=num_long,
            most=max_len,
        )
        print(f"polyhead: {message}", file=sys.stderr)
    if pairs:
        values["ppl"] = run.perplexity([a for a, _ in pairs], [b for _, b in pairs])
        counts = load_token_counts(run)
        if counts is not None:
            predicted = count_reference_tokens(run, [b for _, b in pairs])
            baselines["ppl"] = unigram_baselines(counts, predicted)["ppl"]
        print_measure(tr("perplexity"), values["ppl"], tr("of a reference token"), baselines.get("ppl"))


def count_reference_tokens(run: Run, references: list[str]) -> IdArray:
    """Count how often each token of the references, end of sentence included, is predicted: (V,)."""
    template, size = run.tokenizer.seq2seq_template, run.tokenizer.vocab_size
    special_ids = [template.eos_id] if template.opening_forced else template.labels([])
    rows = map(np.array, [*run.tokenizer.target_tokenizer.encode(references), special_ids * len(references)])
    return count_tokens((row.astype(np.int64) for row in rows), size)


def load_pairs(
    run: Run, files: Sequence[str], split: str, limit: int | None, columns: dict[str, str | int]
) -> tuple[list[str], list[str], CorpusReport]:
    """Load sources and references of the given files, or of a split of the recipe, and the read report."""
    if columns and not files:
        raise UserError(
            "--source and --target are columns of files that are given: polyhead eval RUN FILE --source COLUMN"
        )
    if files:
        corpus = open_corpus(files, **(_file_options(run, files) | columns))
    elif run.recipe is not None and split in run.recipe.data.splits:
        corpus = open_split_corpus(run.recipe, split)
    else:
        raise no_files_error(split, "SOURCE TARGET", run)
    if columns and corpus.format == "parallel":
        raise UserError(
            f"{corpus.source_label} are a side each, without columns or keys: leave out --source and --target"
        )
    sources, references, report = read_pairs(corpus, limit)
    print(report.describe(), file=sys.stderr)
    return sources, references, report


def _file_options(run: Run, files: Sequence[str]) -> dict[str, Any]:
    """Return options to read files in the format of the training files."""
    if run.recipe is None:
        return {}
    data = run.recipe.data
    format = inherit_format(files, data.train, data.format)
    return {"format": format, "source": data.source, "target": data.target}
