"""Evaluate a language model: perplexity."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from polyhead.cli.eval_metrics.printing import (
    JsonMeasures,
    Split,
    eval_command,
    load_token_counts,
    parse_column,
    print_measure,
    print_table,
    require_split,
)
from polyhead.cli.line_io import print_warning
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.evaluate.baselines import Baselines, unigram_baselines
from polyhead.run.run import Run
from polyhead.train.tasks.common import count_predicted_in_text, open_split_text, open_text_like


def evaluate_language_model(
    run: Run, files: Sequence[str], split: Split, *, text: Sequence[str] = ()
) -> JsonMeasures:
    """Print the table of a language model; ``text`` overrides the text columns of the recipe."""
    if text and not files:
        raise UserError(f"--text requires files: {eval_command(run, 'FILE --text COLUMN')}")
    if files:
        columns = [parse_column(one) for one in text]
        text_files = open_text_like([Path(file) for file in files], run.recipe, columns)
    else:
        text_files = open_split_text(require_split(run, split), split)
    start = time.perf_counter()
    result = run.measure_perplexity(text_files)
    seconds = time.perf_counter() - start
    if result.malformed:
        message = "{file}: skipped {count:,} lines that are not text or too long"
        print_warning(tr(message, file=text_files.source_label, count=result.malformed))
    tokens, words, characters = result.tokens, result.words, result.characters
    baselines: Baselines = {}
    if (counts := load_token_counts(run)) is not None:
        text_counts = count_predicted_in_text(text_files, run.tokenizer)
        baselines = unigram_baselines(counts, text_counts, words, characters)
    remarks = {
        "loss": tr("nats per token, {count:,} tokens", count=tokens),
        "ppl": tr("per token, depends on the tokenizer"),
        "word_ppl": tr("per word, {count:,} including line ends", count=words),
        "bits_per_char": tr("per character, {count:,} characters", count=characters),
    }
    measures = print_table(run, result.compute_metrics(), remarks, baselines, result.unknown_tokens)
    remark = tr("tokens/s, in {seconds:,.1f} s with the tokenizer", seconds=seconds)
    print_measure(tr("speed"), tokens / seconds, remark)
    return measures
