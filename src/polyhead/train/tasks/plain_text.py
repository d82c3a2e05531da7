"""The text of tasks that need no labels: as the recipe names it, checked and tokenized."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import Tensor, nn

from polyhead.core.i18n import tr
from polyhead.data.arrays import Ints
from polyhead.data.columns import Column, format_like
from polyhead.data.text import Text, open_text
from polyhead.data.token_store import TokenStore
from polyhead.data_sections import DataConfig
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baselines, count_tokens, unigram_baselines
from polyhead.evaluate.training_counts import TrainingCounts
from polyhead.recipe import Recipe, TrainConfig
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.ranks import Each
from polyhead.train.reporting import Reporter
from polyhead.train.tasks.base import say_split


def text_of(recipe: Recipe, split: str) -> Text:
    """The files of a split as the recipe says they are read; validation may be the end of the training text.

    Of TSV and JSONL files the column ``data.text`` is read.
    """
    data = recipe.data
    files, share, held = data.part(split)
    kept = (1.0 - share, 1.0) if share and held else (0.0, 1.0 - share)
    return open_text(files, data.documents, kept, data.text, data.format)


def text_in(files: Sequence[Path], recipe: Recipe | None, columns: Sequence[Column] = ()) -> Text:
    """Other files, read as those of a recipe are: of tables its column, if no other is named."""
    if recipe is None:
        return open_text(files, "file", columns=columns or DataConfig.model_fields["text"].default)
    data = recipe.data
    format = format_like(files, data.train, data.format)
    return open_text(files, data.documents, columns=columns or data.text, format=format)


def store_of(recipe: Recipe, split: str, tokenizer: Tokenizer) -> TokenStore:
    """The text of a split as tokens, made or found."""
    begin = tokenizer.begin if recipe.model.kind == "decoder" else ()
    return TokenStore.open_or_build(text_of(recipe, split), tokenizer, recipe.stores, begin)


def check_text(recipe: Recipe, least: int) -> None:
    """Every file is there and is text, and rows of data.max_len hold ``least`` tokens and fit the model."""
    if recipe.data.max_len < least:
        raise UserError(
            f"data.max_len is {recipe.data.max_len}; with the special tokens about a text it is {least} at least"
        )
    if recipe.start is None:  # else the model is known later
        check_rows(recipe)
    for split in recipe.data.splits:
        text_of(recipe, split)


def check_rows(recipe: Recipe) -> None:
    """Rows of data.max_len fit the model."""
    rows, most = recipe.data.max_len, recipe.model.max_len
    if rows > most:
        raise UserError(
            f"data.max_len is {rows}, more than model.max_len={most}: rows do not fit; give data.max_len={most}"
        )


def rows_of(config: TrainConfig, width: int) -> int:
    """Rows of ``width`` tokens in a batch; a UserError where not one fits."""
    if config.max_tokens < width:
        raise UserError(
            f"train.max_tokens is {config.max_tokens}, less than a row of data.max_len={width} tokens"
        )
    return config.max_tokens // width


def asked_tokens(store: TokenStore, vocab_size: int) -> Ints:
    """How often each token is predicted where a text is read once: (V,). What begins a document apart never is."""
    unasked = np.union1d([0], store.begins if store.apart else []).astype(np.int64)
    return count_tokens([store.ids], vocab_size) - count_tokens([store.ids[unasked]], vocab_size)


def asked_in(text: Text, tokenizer: Tokenizer) -> Ints:
    """The same of files of plain text, as ``run.measure`` reads them."""
    with TemporaryDirectory() as place:
        store = TokenStore.open_or_build(text, tokenizer, place, tokenizer.begin)
        return asked_tokens(store, tokenizer.vocab_size)


def label_baselines(counts: TrainingCounts, labels: Iterable[Tensor]) -> Baselines:
    """Those of token frequencies where the ``labels`` of some batches are asked for."""
    asked = count_tokens((batch.numpy().ravel() for batch in labels), counts.vocab_size)
    return unigram_baselines(counts.token_counts(), asked)


def test_facts(
    run: Run,
    store_of: Callable[[Recipe, str, Tokenizer], Any],
    measured: Callable[[nn.Module, Any, Each], dict[str, float]],
    each: Each,
) -> dict[str, str]:
    """What a task measures of the test text, for people to read; nothing if the recipe names none."""
    recipe = run.recipe
    assert recipe is not None
    if not recipe.data.test:
        return {}
    found = measured(run.model, store_of(recipe, "test", run.tokenizer), each)
    return {f"test {name}": f"{value:.4f}" for name, value in found.items()}


def accuracy_facts(
    run: Run, valid: TokenStore, measured: Callable[[nn.Module, Any, Each], dict[str, float]], each: Each
) -> dict[str, str]:
    """The accuracy of the validation text, whose loss is told already, and all that is measured of the test text."""
    accuracy = measured(run.model, valid, each)["accuracy"]
    return {"valid accuracy": f"{accuracy:.4f}"} | test_facts(run, store_of, measured, each)


def open_stores(recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> dict[str, TokenStore]:
    """The text of every split as tokens, made or found; also the test text, in which there may be mistakes."""
    check_rows(recipe)
    stores = {split: store_of(recipe, split, tokenizer) for split in recipe.data.splits}
    for split, store in stores.items():
        say_split(report, split, store.report.describe(), tr("{count:,} tokens", count=len(store)))
    return stores
