"""Learning to translate from pairs of sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from torch import nn

from polyhead.data.batches import costliest, plan_epoch
from polyhead.data.collate import Batch, collate
from polyhead.data.store import PairStore
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.loss import Loss, cross_entropy
from polyhead.recipe import TrainConfig
from polyhead.text.tokenizer import Tokenizer

Measure = Callable[[Seq2Seq], dict[str, float]]


class Translation:
    """Teacher forcing: the decoder reads the target shifted by one and predicts all of it at once."""

    def __init__(
        self, train: PairStore, valid: PairStore, tokenizer: Tokenizer, config: TrainConfig, measures: Sequence[Measure] = ()
    ) -> None:
        self.train, self.valid, self.tokenizer = train, valid, tokenizer
        self.config, self.measures = config, measures
        self.valid_batches = self._plan(valid, 0)  # made now, so that a pair that fits no batch is told at the start

    def plan(self, epoch: int) -> Sequence[np.ndarray]:
        """The rows of every batch of an epoch, in order."""
        return self._plan(self.train, epoch)

    def hardest(self) -> np.ndarray:
        """The rows of the batch that needs the most memory; no epoch has a larger one."""
        batches = self.plan(0)
        return batches[costliest(batches, self.train.source_lengths, self.train.target_lengths)]

    def batch(self, rows: np.ndarray) -> Batch:
        """Padded tensors of some training pairs."""
        return collate(self.train, rows, self.tokenizer)

    def count(self, batch: Batch) -> int:
        """Labels that count."""
        return batch.n_tokens

    def loss(self, model: nn.Module, batch: Batch, smoothing: float | None = None) -> Loss:
        """Label-smoothed cross-entropy as sums."""
        assert isinstance(model, Seq2Seq)
        # padding on the right is after all that a causal decoder sees, so most need not be told of it
        target_pos = batch.target_pos if model.counts_tokens else None
        features = model.features(batch.source, batch.target, batch.source_pos, target_pos)
        smoothing = self.config.label_smoothing if smoothing is None else smoothing
        return cross_entropy(features, model.head.weight, batch.labels, smoothing)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss without smoothing and perplexity of the validation pairs, and whatever else is measured."""
        assert isinstance(model, Seq2Seq)
        nll, count = 0.0, 0
        for rows in self.valid_batches:
            loss = self.loss(model, collate(self.valid, rows, self.tokenizer), smoothing=0.0)
            nll, count = nll + float(loss.nll), count + loss.count
        measured = {"loss": nll / count, "ppl": math.exp(min(nll / count, 700.0))}
        for measure in self.measures:
            measured |= measure(model)
        return measured

    def _plan(self, store: PairStore, epoch: int) -> Sequence[np.ndarray]:
        return plan_epoch(
            store.source_lengths, store.target_lengths, max_tokens=self.config.max_tokens, seed=self.config.seed, epoch=epoch
        )
