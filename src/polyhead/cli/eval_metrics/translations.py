"""Evaluate a translator against reference translations."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.cli.eval_metrics.printing import (
    JsonMeasures,
    Split,
    eval_command,
    file_options,
    load_token_counts,
    parse_column,
    print_measure,
    print_table_end,
    require_split,
    to_json_measures,
    write_output_lines,
)
from polyhead.cli.line_io import LineCounter, print_warning, read_lines, read_terminology, to_one_line
from polyhead.cli.options import drop_none
from polyhead.cli.swapped_sides import SwapCheck
from polyhead.config.data_config import DataConfig
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.core.output_paths import expand_folders
from polyhead.data.readers.parallel_corpus import (
    CorpusFormat,
    CorpusReport,
    ParallelFiles,
    merge_corpora,
    merge_references,
    open_corpus,
    open_references,
    read_pairs,
)
from polyhead.data.readers.tabular import infer_format
from polyhead.data.stores.build_cache import IdArray
from polyhead.evaluate.baselines import (
    Baseline,
    count_tokens,
    read_counts,
    translation_baselines,
    unigram_baselines,
)
from polyhead.evaluate.metrics import (
    N_RESAMPLES,
    Evaluation,
    check_metrics,
    compare_scores,
    evaluate_translations,
)
from polyhead.run.run import Run
from polyhead.tokenizers.languages import default_languages, is_same_language, with_languages
from polyhead.tokenizers.unknown_tokens import count_unknown
from polyhead.train.tasks.translation import open_split_corpus


def evaluate_translator(
    run: Run,
    files: Sequence[str],
    split: Split,
    *,
    limit: int | None = None,
    output: Path | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    terminology: str | None = None,
    shortlist: bool | None = None,
    source: str | None = None,
    target: str | None = None,
    metric: Sequence[str] = (),
    against: Run | Path | None = None,
    **settings: Any,
) -> JsonMeasures:
    """Print the table of a translator; options and columns default to those of the run.

    ``against`` is another run, or a file as written by --output, whose scores are compared.
    """
    check_metrics(metric)
    sides = {"source": source, "target": target}
    columns = {side: parse_column(name) for side, name in sides.items() if name is not None}
    entries = None if terminology is None else read_terminology(terminology)
    sources, references, report = load_pairs(run, files, split, limit, columns, target_lang)
    SwapCheck(run, source_lang, target_lang).check_pairs(sources, [texts[0] for texts in references])
    changes = settings | drop_none(terminology=entries, shortlist=shortlist)
    other_outputs = read_output_lines(against, report, limit) if isinstance(against, Path) else []
    for one in (run, against):
        if isinstance(one, Run) and (source_lang or target_lang):  # also for the perplexity
            template = with_languages(one.tokenizer, source_lang, target_lang)
            one.tokenizer = one.tokenizer.with_seq2seq_template(template)
    counter, start = LineCounter(), time.perf_counter()
    lang = target_lang or (run.recipe.data.target_lang if run.recipe else "")
    lang = lang or default_languages(run.tokenizer)["target"]
    result = run.evaluate(
        sources, references, lang, metrics=metric, progress=counter.show_progress, **changes
    )
    seconds = time.perf_counter() - start
    counter.add(len(sources))
    counter.close()
    if result.warning:
        print_warning(result.warning)
    counts = read_counts(run.directory)
    frequent_target = counts.target if counts else None
    baselines = dict(translation_baselines(sources, references, lang, frequent_target, metric))
    values = {score.name: score.value for score in result.scores}
    for score in result.scores:
        remark = f"±{score.margin:.2f}  {score.signature}"
        print_measure(tr(score.name), score.value, remark, baselines.get(score.name))
    n_exact = sum(output in texts for output, texts in zip(result.outputs, references, strict=True))
    exact = 100 * n_exact / len(references)
    print_measure(tr("exact"), exact, tr("% of the translations equal to their reference"))
    if output is not None:
        write_output_lines(output, map(to_one_line, result.outputs), report)
    print_perplexity(run, sources, references, values, baselines)
    targets = (text for texts in references for text in texts)
    unknown = count_unknown(sources, run.tokenizer)
    unknown += count_unknown(targets, run.tokenizer.target_tokenizer)
    print_table_end(run, values, baselines, unknown)
    remark = tr("translations/s, {count:,} in {seconds:,.1f} s", count=len(sources), seconds=seconds)
    print_measure(tr("speed"), len(sources) / seconds, remark)
    measures = to_json_measures(values | {"exact": exact}, baselines)
    measures["scores"] = {
        score.name: {"value": score.value, "margin": score.margin, "signature": score.signature}
        for score in result.scores
    }
    if against is None:
        return measures
    name = str(against.directory if isinstance(against, Run) else against)
    if isinstance(against, Run):
        other = against.evaluate(sources, references, lang, metrics=metric, **changes)
    else:
        other = evaluate_translations(other_outputs, references, lang, metric, sources, N_RESAMPLES)
    return measures | {"against": {"name": name} | compare_evaluations(result, other, name)}


def compare_evaluations(result: Evaluation, other: Evaluation, name: str) -> JsonMeasures:
    """Print the difference of each score from that of another run or file, by paired bootstrap."""
    print(
        "\n" + tr("difference from {name}, its 95 % interval, two-sided p of a paired bootstrap", name=name)
    )
    measures = {}
    for score, base in zip(result.scores, other.scores, strict=True):
        difference = compare_scores(score, base)
        scores = tr("({value:.2f} against {other:.2f})", value=score.value, other=base.value)
        remark = f"[{difference.low:+.2f}, {difference.high:+.2f}]  p {difference.p:.3f}  {scores}"
        print_measure(tr(score.name), difference.value, remark)
        measures[score.name] = {"value": base.value, "difference": difference._asdict()}
    return measures


def read_output_lines(path: Path, report: CorpusReport, limit: int | None) -> list[str]:
    """The translations of the pairs that are used, from a file with a line for each pair."""
    lines = list(read_lines(str(path)))
    if len(lines) < report.total or (limit is None and len(lines) > report.total):
        raise UserError(
            f"--against: {path} has {len(lines):,} lines for {report.total:,} pairs; expected a run, or a "
            "file with one translation per line, as written by --output"
        )
    return [lines[number - 1] for number in report.row_numbers]


def print_perplexity(
    run: Run,
    sources: list[str],
    references: list[list[str]],
    values: dict[str, float],
    baselines: dict[str, Baseline],
) -> None:
    """Print the perplexity over all references that fit into the model, and add it to ``values``."""
    pairs = [(a, b) for a, texts in zip(sources, references, strict=True) for b in texts]
    encoded_pairs = zip(
        run.tokenizer.encode([a for a, _ in pairs]),
        run.tokenizer.target_tokenizer.encode([b for _, b in pairs]),
        strict=True,
    )
    max_len = run.config.max_len - run.tokenizer.seq2seq_template.max_special
    fits = [max(map(len, pair)) <= max_len for pair in encoded_pairs]
    pairs = [pair for pair, fit in zip(pairs, fits, strict=True) if fit]
    if num_long := len(fits) - len(pairs):
        message = (
            "{count:,} pairs have more than {most} tokens per side: only their beginning is translated, "
            "and they are excluded from the perplexity"
        )
        print_warning(tr(message, count=num_long, most=max_len))
    if pairs:
        values["ppl"] = run.perplexity([a for a, _ in pairs], [b for _, b in pairs])
        counts = load_token_counts(run)
        if counts is not None:
            predicted = count_reference_tokens(run, [b for _, b in pairs])
            baselines["ppl"] = unigram_baselines(counts, predicted)["ppl"]
        print_measure(tr("perplexity"), values["ppl"], tr("per reference token"), baselines.get("ppl"))


def count_reference_tokens(run: Run, references: list[str]) -> IdArray:
    """Count how often each token of the references, end of sentence included, is predicted: (V,)."""
    template, size = run.tokenizer.seq2seq_template, run.tokenizer.target_tokenizer.vocab_size
    special_ids = [template.eos_id] if template.opening_forced else template.labels([])
    rows = map(np.array, [*run.tokenizer.target_tokenizer.encode(references), special_ids * len(references)])
    return count_tokens((row.astype(np.int64) for row in rows), size)


def load_pairs(
    run: Run,
    files: Sequence[str],
    split: str,
    limit: int | None,
    columns: dict[str, str | int],
    target_lang: str | None = None,
) -> tuple[list[str], list[list[str]], CorpusReport]:
    """Load sources, the references of each and the report, from files or from a split of the recipe."""
    if columns and not files:
        raise UserError(f"--source and --target require files: {eval_command(run, 'FILE --source COLUMN')}")
    if files:
        if len(files) == 1 and not columns:
            _reject_labels(run, Path(files[0]))
        corpus = open_files(files, **(file_options(run, files, "source", "target") | columns))
    else:
        recipe = require_split(run, split, "SOURCE TARGET")
        corpus = select_language(open_split_corpus(recipe, split), recipe.data, split, target_lang)
    if columns and corpus.format == "parallel":
        raise UserError(
            f"{corpus.source_label} are one side each, without columns or keys: remove --source and --target"
        )
    pair_sets = [read_pairs(one, limit) for one in (corpus, *corpus.references)]
    for _, _, report in pair_sets:
        print(report.describe(), file=sys.stderr)
    return merge_references(pair_sets, limit)


def select_language(
    corpus: ParallelFiles, data: DataConfig, split: str, target_lang: str | None
) -> ParallelFiles:
    """The corpora of a split with a target language, if it has several."""
    if target_lang is None or not data.language_tags:
        return corpus
    languages = data.list_targets(split)
    parts = [
        part
        for part, lang in zip(corpus.parts, languages, strict=True)
        if is_same_language(lang, target_lang.strip("<>"))
    ]
    if not parts:
        names = ", ".join(dict.fromkeys(languages))
        raise UserError(
            f"--target-lang {target_lang}: no corpus of data.{split} has this target; known: {names}"
        )
    return merge_corpora(parts)


def _reject_labels(run: Run, path: Path) -> None:
    """Raise a UserError for a table with a column of labels, of which no pair of columns is a translation."""
    table_format = infer_format([path])
    # if so, its columns are those of the table
    is_trained_on_table = run.recipe is not None and len(run.recipe.data.list_files("train")) == 1
    if table_format is None or is_trained_on_table:
        return
    from polyhead.autoconfig.column_roles import read_columns

    try:
        table = read_columns(path, table_format)
        is_labeled = "label" in table.label_columns or table.infer_task({}) == "classification"
    except UserError:
        return
    if names := [name for name in table.label_columns if isinstance(name, str)] if is_labeled else []:
        name = "label" if "label" in names else names[0]
        raise UserError(
            f"{path} has labelled texts (column {name!r}), but this run is an encoder-decoder and is "
            "evaluated on translations; if two columns are translations, name them: "
            + eval_command(run, f"{path} --source COLUMN --target COLUMN")
        )


def open_files(files: Sequence[str], format: CorpusFormat = "auto", **columns: Any) -> ParallelFiles:
    """Open a table or a source and its references.

    The texts of folders are paired by name.
    """
    if (paths := expand_folders(files)) != [*map(Path, files)]:
        return open_corpus(paths, format=format, **columns)
    is_parallel = format == "parallel" or (format == "auto" and infer_format([*map(Path, files)]) is None)
    if len(files) <= 2 or not is_parallel:
        return open_corpus(files, format=format, **columns)
    return open_references(files)
