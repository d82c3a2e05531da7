"""Functions shared by tasks on unlabelled text: opening, checking and tokenizing it, baselines and facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import Tensor, nn

from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.data.readers.plain_text import TextFiles, open_text
from polyhead.data.readers.tabular import ColumnKey, inherit_format
from polyhead.data.stores.arrays import IdArray
from polyhead.data.stores.token_store import TokenStore
from polyhead.evaluate.baselines import Baselines, count_tokens, unigram_baselines
from polyhead.evaluate.training_counts import TrainingCounts
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.distributed.process_group import MapFn
from polyhead.train.loggers import Reporter
from polyhead.train.tasks.base import report_split


def open_split_text(recipe: Recipe, split: str) -> TextFiles:
    """Open the files of a split as set in the recipe; validation may be the end of the training text.

    Of TSV and JSONL files, the column ``data.text`` is read.
    """
    data = recipe.data
    files, share, is_validation = data.select_split(split)
    fraction_range = (1.0 - share, 1.0) if share and is_validation else (0.0, 1.0 - share)
    return open_text(files, data.document_separator, fraction_range, data.text, data.format)


def open_text_like(
    files: Sequence[Path], recipe: Recipe | None, columns: Sequence[ColumnKey] = ()
) -> TextFiles:
    """Open other files with the settings of a recipe; of tables, ``columns`` or else the recipe's column."""
    if recipe is None:
        return open_text(files, "file", columns=columns or DataConfig.model_fields["text"].default)
    data = recipe.data
    format = inherit_format(files, data.train, data.format)
    return open_text(files, data.document_separator, columns=columns or data.text, format=format)


def open_token_store(recipe: Recipe, split: str, tokenizer: Tokenizer) -> TokenStore:
    """The tokenized text of a split, built or loaded from the cache."""
    prefix = tokenizer.prefix_ids if recipe.model.kind == "decoder" else ()
    return TokenStore.open_or_build(open_split_text(recipe, split), tokenizer, recipe.token_cache_dir, prefix)


def check_text(recipe: Recipe, min_len: int) -> None:
    """Raise a UserError if a file is missing or is not text, or ``data.max_len`` is out of range.

    It must be at least ``min_len`` and at most ``model.max_len``.
    """
    if recipe.data.max_len < min_len:
        raise UserError(
            f"data.max_len is {recipe.data.max_len}; with special tokens the minimum is {min_len}"
        )
    if recipe.init_from is None:  # else the model is not known yet
        check_rows(recipe)
    for split in recipe.data.splits:
        open_split_text(recipe, split)


def check_rows(recipe: Recipe) -> None:
    """Raise a UserError if rows of ``data.max_len`` tokens exceed ``model.max_len``."""
    row_len, max_len = recipe.data.max_len, recipe.model.max_len
    if row_len > max_len:
        raise UserError(
            f"data.max_len is {row_len}, more than model.max_len={max_len}: rows do not fit; set "
            f"data.max_len={max_len}"
        )


def rows_per_batch(config: TrainConfig, width: int) -> int:
    """Rows of ``width`` tokens per batch; a UserError if not even one fits."""
    if config.max_tokens < width:
        raise UserError(
            f"train.max_tokens is {config.max_tokens}, less than a row of data.max_len={width} tokens"
        )
    return config.max_tokens // width


def count_predicted_tokens(store: TokenStore, vocab_size: int) -> IdArray:
    """Counts of the tokens as labels in one pass: (V,). First tokens (of each document) are not labels."""
    first_tokens = np.union1d([0], store.document_starts if store.has_document_prefix else []).astype(
        np.int64
    )
    return count_tokens([store.ids], vocab_size) - count_tokens([store.ids[first_tokens]], vocab_size)


def count_predicted_in_text(text: TextFiles, tokenizer: Tokenizer) -> IdArray:
    """Counts of the tokens as labels in plain text files, read as by ``Run.measure_perplexity``."""
    with TemporaryDirectory() as directory:
        store = TokenStore.open_or_build(text, tokenizer, directory, tokenizer.prefix_ids)
        return count_predicted_tokens(store, tokenizer.vocab_size)


def compute_label_baselines(counts: TrainingCounts, labels: Iterable[Tensor]) -> Baselines:
    """Baselines from token frequencies, on the ``labels`` of some batches."""
    label_counts = count_tokens((batch.numpy().ravel() for batch in labels), counts.vocab_size)
    return unigram_baselines(counts.token_counts(), label_counts)


def collect_test_facts(
    run: Run,
    open_store: Callable[[Recipe, str, Tokenizer], Any],
    measure: Callable[[nn.Module, Any, MapFn], dict[str, float]],
    map_fn: MapFn,
) -> dict[str, str]:
    """Metrics of the test text as facts for the README.md; empty if the recipe has no test text."""
    recipe = run.recipe
    assert recipe is not None
    if not recipe.data.test:
        return {}
    metrics = measure(run.model, open_store(recipe, "test", run.tokenizer), map_fn)
    return {f"test {name}": f"{value:.4f}" for name, value in metrics.items()}


def collect_accuracy_facts(
    run: Run, valid: TokenStore, measure: Callable[[nn.Module, Any, MapFn], dict[str, float]], map_fn: MapFn
) -> dict[str, str]:
    """Accuracy on the validation text (its loss is a fact already), and all metrics on the test text."""
    accuracy = measure(run.model, valid, map_fn)["accuracy"]
    return {"valid accuracy": f"{accuracy:.4f}"} | collect_test_facts(run, open_token_store, measure, map_fn)


def open_stores(recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> dict[str, TokenStore]:
    """The tokenized text of every split, also of the test text, so that errors in it are raised early."""
    check_rows(recipe)
    stores = {split: open_token_store(recipe, split, tokenizer) for split in recipe.data.splits}
    for split, store in stores.items():
        summary, unknown = tr("{count:,} tokens", count=len(store)), store.count_unknown(tokenizer)
        report_split(report, split, store.report.describe(), summary, unknown=unknown)
    return stores
