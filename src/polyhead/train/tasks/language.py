"""Causal language modelling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import add

import numpy as np
from torch import nn

from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.data.batching.length_bucketing import shard_rows
from polyhead.data.batching.mixture import plan_mixed_windows
from polyhead.data.batching.token_windows import (
    TokenWindows,
    collate_windows,
    count_windows,
    make_dummy_windows,
    plan_windows,
    shard_windows,
)
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.token_store import TokenStore
from polyhead.evaluate.baselines import Baselines, TrainingCounts, unigram_baselines
from polyhead.evaluate.perplexity import Perplexity, collate_rows, compute_perplexity, plan_rows
from polyhead.models import CausalLM
from polyhead.nn.loss import Loss
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.common import (
    causal_lm_logits,
    causal_lm_loss,
    check_causal_lm_decoding,
    check_text,
    count_causal_lm_labels,
    count_predicted_tokens,
    iter_training_texts,
    open_stores,
    rows_per_batch,
)
from polyhead.train.tasks.corpora import list_shares, make_mixture, name_losses
from polyhead.train.tasks.store_task import StoreTask


@TASK.register("language-model")
class LanguageModelingTask(StoreTask[TokenStore]):
    """Every token of a long text predicts the next one.

    The text is split into rows of ``data.max_len`` tokens, at another offset in every epoch. If it has
    several documents, positions start again at each, and attention does not cross documents.

    Equation: -Σ_t log p(x_t | x_1 ... x_{t-1})
    Paper: Bengio et al., 2003; Radford et al., 2018
    When: to generate text, from unpaired training text
    Recipe: task: language-model
    """

    kind = "decoder"
    label_smoothing = 0.0  # perplexity needs unsmoothed probabilities
    metrics = ("loss",)
    title = "A language model"
    usage = 'polyhead generate . "Once upon a time"'
    check = staticmethod(check_text)
    iter_texts = staticmethod(iter_training_texts)
    shard = staticmethod(shard_rows)
    shard_sequence = staticmethod(shard_windows)
    count_labels = staticmethod(count_causal_lm_labels)
    compute_logits = staticmethod(causal_lm_logits)

    def __init__(self, stores: Mapping[str, TokenStore], data: DataConfig, config: TrainConfig) -> None:
        super().__init__(stores, config)
        self.width, self.has_documents = data.max_len, len(self.train.document_starts) > 1
        self.batch_rows = rows_per_batch(config, self.width)
        for split, name in {"valid": "validation", "test": "test"}.items():
            if split in stores and len(stores[split]) < 2:
                raise UserError(
                    f"the {name} text is only one token, so there is nothing to predict; use more text"
                )
        self.mixture = make_mixture(data, config.seed)
        self.epoch_batches(0)  # raises if the text is too short
        sizes = [count_windows(length, self.width) for length in np.diff(self.train.corpus_starts).tolist()]
        self.shares = list_shares(self.mixture, sizes, self.train.report)

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> LanguageModelingTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        check_causal_lm_decoding(recipe, tokenizer)
        return cls(open_stores(recipe, tokenizer, report), recipe.data, recipe.train)

    def epoch_batches(self, epoch: int) -> Sequence[IdArray]:
        """Start positions of the rows of every batch of an epoch, in order."""
        if self.mixture:
            starts = self.train.corpus_starts
            return plan_mixed_windows(self.mixture, starts, self.width, self.batch_rows, epoch)
        return plan_windows(len(self.train), self.width, self.batch_rows, seed=self.config.seed, epoch=epoch)

    def largest_batch(self) -> IdArray:
        """The first batch: all full batches have the same size."""
        return self.epoch_batches(0)[0]

    def collate(self, starts: IdArray) -> TokenWindows:
        """Batch of rows of the training text."""
        return collate_windows(self.train, starts, self.width, has_documents=self.has_documents)

    def dummy_batch(self) -> TokenWindows:
        """A batch without tokens and labels."""
        return make_dummy_windows(self.has_documents)

    def loss(self, model: nn.Module, batch: TokenWindows) -> Loss:
        """Cross-entropy, as a sum over labels."""
        return causal_lm_loss(model, batch, self.config.label_smoothing or 0.0)

    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Loss and perplexity per token, perplexity per word, bits per character of a text."""
        assert isinstance(model, CausalLM)
        store = self.stores[split]
        parts = [
            compute_perplexity(model, part, self.width, self.batch_rows, map_fn)
            for part in store.split_corpora()
        ]
        losses = name_losses(store.report, [part.loss for part in parts])
        total = Perplexity(*(reduce(add, column) for column in zip(*parts, strict=True)))
        return total.compute_metrics() | losses

    def eval_batches(self, split: str) -> Iterator[tuple[IdArray, TokenWindows]]:
        """First positions and windows of the rows of a text, in order."""
        store = self.stores[split]
        plan = plan_rows(store, self.width, self.batch_rows)
        return ((rows[:, 0], collate_rows(store, rows, self.width)) for rows in plan)

    def count_training_tokens(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Counts of the tokens as labels."""
        return TrainingCounts.from_token_counts(count_predicted_tokens(self.train, tokenizer.vocab_size))

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Baselines from token frequencies."""
        label_counts = count_predicted_tokens(self.stores[split], counts.vocab_size)
        report = self.stores[split].report
        return unigram_baselines(counts.token_counts(), label_counts, report.words, report.characters)
