"""Evaluate a language model: perplexity."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from polyhead.cli.eval_metrics.printing import (
    Split,
    load_token_counts,
    no_files_error,
    parse_column,
    print_measure,
    print_unknown,
    print_verdict,
)
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.data.readers.plain_text import TextFiles
from polyhead.evaluate.baselines import Baselines, unigram_baselines
from polyhead.evaluate.perplexity import Perplexity
from polyhead.run.run import Run
from polyhead.train.tasks.common import count_predicted_in_text, open_split_text, open_text_like


def evaluate_language_model(
    run: Run, files: Sequence[str], split: Split, *, text: Sequence[str] = ()
) -> None:
    """Print the table of a language model; ``text`` overrides the text columns of the recipe."""
    if text and not files:
        raise UserError("--text requires files: polyhead eval RUN FILE --text COLUMN")
    if run.recipe and not files:
        if split == "test" and not run.recipe.data.test:
            raise no_files_error(split, "FILE", run)
        text_files = open_split_text(run.recipe, split)
    elif not files:
        raise no_files_error(split, "FILE", run)
    else:
        text_files = open_text_like(
            [Path(file) for file in files], run.recipe, [parse_column(one) for one in text]
        )
    start = time.perf_counter()
    result = run.measure_perplexity(text_files)
    seconds = time.perf_counter() - start
    if result.malformed:
        message = tr(
            "{file}: skipped {count:,} lines that are not text or too long",
            file=text_files.source_label,
            count=result.malformed,
        )
        print(f"polyhead: {message}", file=sys.stderr)
    values = result.compute_metrics()
    baselines = load_text_baselines(run, text_files, result)
    tokens, words, characters = result.tokens, result.words, result.characters
    lines = [
        (tr("loss"), tr("nats per token, {count:,} tokens", count=tokens)),
        (tr("perplexity"), tr("per token, depends on the tokenizer")),
        (tr("word-ppl"), tr("per word, {count:,} including line ends", count=words)),
        (tr("bits"), tr("per character, {count:,} characters", count=characters)),
    ]
    for (name, value), line in zip(values.items(), lines, strict=True):
        print_measure(line[0], value, line[1], baselines.get(name))
    print_unknown(result.unknown_tokens)
    print_verdict(run, values, baselines)
    remark = tr("tokens/s, in {seconds:,.1f} s with the tokenizer", seconds=seconds)
    print_measure(tr("speed"), tokens / seconds, remark)


def load_text_baselines(run: Run, text: TextFiles, result: Perplexity) -> Baselines:
    """Return the unigram baselines; empty if the run directory has no token counts."""
    counts = load_token_counts(run)
    if counts is None:
        return {}
    return unigram_baselines(
        counts, count_predicted_in_text(text, run.tokenizer), result.words, result.characters
    )
