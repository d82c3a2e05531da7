"""Masked language modelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.data.batching.length_bucketing import describe_batches
from polyhead.data.batching.masking import mask_row, row_rng
from polyhead.data.batching.packing import (
    SPECIAL_PER_SEGMENT,
    PackedRows,
    Segments,
    collate_packed_rows,
    plan_packed_rows,
)
from polyhead.data.batching.token_windows import SequenceShard, make_dummy_windows
from polyhead.data.stores.token_store import TokenStore
from polyhead.evaluate.baselines import TrainingCounts, count_tokens
from polyhead.evaluate.perplexity import TokenLoss, token_losses
from polyhead.models import Ensemble, MaskedLM
from polyhead.nn.device import place_batch, to_model_device
from polyhead.nn.loss import IGNORE_INDEX, Loss, cross_entropy, labeled_rows, select_labels
from polyhead.nn.packed_rows import token_rows
from polyhead.nn.positions import Positions
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.word_boundaries import find_word_boundaries
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.base import TaskLogits
from polyhead.train.tasks.common import (
    SegmentTask,
    check_text,
    measure_token_loss,
    open_stores,
    rows_per_batch,
)

_PLAN_KEY, _MASK_KEY, EVAL_KEY = 1, 2, 3  # first element of a random key: what is drawn


class MaskedBatch(NamedTuple):
    """A batch of rows with some tokens masked."""

    tokens: Tensor  # (B, T) int64: encoder input
    # (B, T) int64: positions from 0 in each segment, -1 at padding; None if every row is one full segment
    pos: Tensor | None
    labels: Tensor  # (B, T) int64: the tokens to predict, -100 elsewhere


def count_masked_labels(batch: MaskedBatch) -> int:
    """Number of tokens to predict."""
    return int((batch.labels != IGNORE_INDEX).sum())


@TASK.register("masked-lm")
class MaskedLMTask(SegmentTask):
    """Predict randomly selected tokens of a text, most of them masked, from the context on both sides.

    Of the selected tokens 80 % are replaced by the mask, 10 % by another token, and 10 % are unchanged.
    Documents are enclosed in ``<s>`` and ``</s>`` and packed into rows of ``data.max_len``, without attention
    across documents; only longer documents are split, at another offset in every epoch. Masks are drawn anew
    in every epoch; those of the validation text are fixed.

    Equation: -Σ_{t selected} log p(x_t | x with the selected tokens masked)
    Paper: Devlin et al., 2018, sec. 3.1; Liu et al., 2019, sec. 4.1
    When: to pre-train an encoder before it is fine-tuned for classification or embeddings
    Recipe: task: {name: masked-lm, whole_word: true}
    Options:
      mask: share of the tokens that are selected, in every row
      whole_word: select whole words: all tokens of a word or none
    """

    kind = "encoder"
    label_smoothing = 0.0
    metrics = ("loss", "accuracy")
    title = "A masked language model"
    usage = 'polyhead fill-mask . "The <mask> sat down."'
    valid_facts: Mapping[str, str] = {"accuracy": "accuracy"}
    shard = staticmethod(PackedRows.shard)
    count_labels = staticmethod(count_masked_labels)

    def __init__(
        self,
        stores: Mapping[str, TokenStore],
        tokenizer: Tokenizer,
        data: DataConfig,
        config: TrainConfig,
        *,
        mask: float = 0.15,
        whole_word: bool = False,
    ) -> None:
        self.mask, self.width, self.batch_rows = mask, data.max_len, rows_per_batch(config, data.max_len)
        self.word_boundaries = find_word_boundaries(tokenizer) if whole_word else None
        self.is_special = np.zeros(tokenizer.vocab_size, dtype=bool)
        self.is_special[tokenizer.special_ids] = True
        self.mask_id = tokenizer.mask_id
        super().__init__(stores, tokenizer, data, config, self.width - SPECIAL_PER_SEGMENT)

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raise a UserError if the model has no head, the mask share is invalid, or a file is not text."""
        if not recipe.model.lm_head:
            raise UserError(
                "model.lm_head=false has no vocabulary logits, which task 'masked-lm' requires: remove it"
            )
        check_masking(recipe)

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> MaskedLMTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        stores = open_stores(recipe, tokenizer, report)
        task = cls(stores, tokenizer, recipe.data, recipe.train, **recipe.task.options)
        plan = task.epoch_batches(0)
        n_positions = sum(len(batch.rows) for batch in plan) * task.width
        n_used = sum(int((batch.segments.lengths + SPECIAL_PER_SEGMENT).sum()) for batch in plan)
        report.info(describe_batches(len(plan), n_used / n_positions))
        return task

    def epoch_batches(self, epoch: int) -> Sequence[PackedRows]:
        """The packed rows of every batch of an epoch, in order."""
        rng = row_rng([_PLAN_KEY, self.config.seed, epoch])
        return plan_packed_rows(self.cut_epoch(epoch, rng), self.width, self.batch_rows, epoch, rng)

    def plan_eval_batches(self, segments: Segments) -> list[PackedRows]:
        return plan_packed_rows(segments, self.width, self.batch_rows, 0, row_rng([EVAL_KEY]))

    def largest_batch(self) -> PackedRows:
        """The first batch: all full batches have the same size."""
        return self.epoch_batches(0)[0]

    def collate(self, packed_rows: PackedRows) -> MaskedBatch:
        """Batch of training rows, with masks drawn by (seed, epoch, row)."""
        return self._mask_rows(self.train, packed_rows, [_MASK_KEY, self.config.seed, packed_rows.epoch])

    def dummy_batch(self) -> MaskedBatch:
        """A batch without tokens and labels."""
        return MaskedBatch(*make_dummy_windows()[:3])

    def shard_sequence(self, batch: MaskedBatch, shard: SequenceShard) -> MaskedBatch:
        """One rank's part of the tokens of each row."""
        return MaskedBatch(
            shard.select(batch.tokens),
            shard.select_positions(batch.pos, batch.tokens),
            shard.select(batch.labels, IGNORE_INDEX),
        )

    def loss(self, model: nn.Module, batch: MaskedBatch) -> Loss:
        """Cross-entropy of the tokens to predict, as a sum; the head is computed only for these."""
        assert isinstance(model, MaskedLM)
        batch, host = place_batch(model, batch)
        features = masked_lm_features(model, batch, host)
        labels, known = select_labels(batch.labels, host.labels)
        return cross_entropy(features, model.head, labels, self.config.label_smoothing or 0.0, host=known)

    def compute_logits(self, model: nn.Module, batch: MaskedBatch) -> TaskLogits:
        """Logits of the tokens to predict."""
        assert isinstance(model, MaskedLM)
        batch, host = place_batch(model, batch)
        hidden = model.encoder(batch.tokens, Positions.of(batch.pos, host.pos)).flatten(0, 1)
        labeled = hidden.index_select(0, labeled_rows(batch.labels, host.labels))
        unpadded = hidden if batch.pos is None else hidden.index_select(0, token_rows(batch.pos, host.pos))
        labels, known = select_labels(batch.labels, host.labels)
        return TaskLogits(model.head(model.apply_transform(labeled)), labels, unpadded, known)

    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Loss, perplexity and accuracy of the tokens to predict in a text."""
        assert isinstance(model, MaskedLM | Ensemble)

        def measure_batch(packed_rows: PackedRows) -> TokenLoss:
            batch = to_model_device(model, self.collate_eval(split, packed_rows))
            labels = batch.labels[batch.labels != IGNORE_INDEX]
            return token_losses(masked_lm_features(model, batch), model.head, labels)

        return measure_token_loss(measure_batch, self.plan_corpora(split), map_fn, self.stores[split].report)

    def count_training_tokens(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Counts of all tokens that can be masked."""
        counts = count_tokens([self.train.ids], tokenizer.vocab_size)
        counts[self.is_special] = 0
        return TrainingCounts.from_token_counts(counts)

    def _mask_rows(self, store: TokenStore, packed_rows: PackedRows, key: list[int]) -> MaskedBatch:
        tokens, pos = collate_packed_rows(store, packed_rows, self.tokenizer)
        labels = np.empty_like(tokens)
        for i, row in enumerate(packed_rows.rows.tolist()):
            rng = row_rng([*key, row])
            tokens[i], labels[i] = mask_row(
                tokens[i], self.is_special, self.mask_id, self.mask, self.word_boundaries, rng
            )
        is_full = bool((pos == np.arange(pos.shape[1])).all())
        return MaskedBatch(
            torch.from_numpy(tokens), None if is_full else torch.from_numpy(pos), torch.from_numpy(labels)
        )

    def collate_eval(self, split: str, packed_rows: PackedRows) -> MaskedBatch:
        return self._mask_rows(self.stores[split], packed_rows, [EVAL_KEY, 0])


def check_masking(recipe: Recipe) -> None:
    """Raise a UserError if the mask share is out of range, or a file is missing or is not text."""
    share = recipe.task.options["mask"]
    if not 0 < share <= 1:
        raise UserError(
            f"mask of task {recipe.task.name!r} must be a fraction above 0 and at most 1, not "
            f"{share}; BERT uses 0.15"
        )
    check_text(recipe, min_len=SPECIAL_PER_SEGMENT + 1)


def masked_lm_features(
    model: MaskedLM | Ensemble, batch: MaskedBatch, host: MaskedBatch | None = None
) -> Tensor:
    """Features of the tokens to predict, for the LM head: (N, C). ``host`` is the batch on the CPU."""
    host = host or batch
    hidden = model.encoder(batch.tokens, Positions.of(batch.pos, host.pos)).flatten(0, 1)
    return model.apply_transform(hidden.index_select(0, labeled_rows(batch.labels, host.labels)))
