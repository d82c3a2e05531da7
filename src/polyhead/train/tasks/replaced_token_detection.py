"""Replaced token detection (ELECTRA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.option_types import NonNegativeFloat
from polyhead.core.registry import TASK
from polyhead.data.batching.masking import row_rng
from polyhead.data.batching.packing import PackedRows
from polyhead.data.batching.token_windows import SequenceShard
from polyhead.data.stores.token_store import TokenStore
from polyhead.evaluate.baselines import Baseline, Baselines, TrainingCounts
from polyhead.evaluate.perplexity import loss_to_perplexity, token_losses
from polyhead.models import ReplacedTokenDetector
from polyhead.nn.device import place_batch, to_model_device
from polyhead.nn.loss import IGNORE_INDEX, Loss, cross_entropy, labeled_rows, select_labels
from polyhead.nn.packed_rows import token_rows
from polyhead.nn.positions import Positions
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.common import iter_training_texts
from polyhead.train.tasks.masked import (
    EVAL_KEY,
    MaskedBatch,
    MaskedLMTask,
    check_masking,
    count_masked_labels,
    masked_lm_features,
)
from polyhead.train.tasks.store_task import StoreTask

SAMPLING_KEY = 4  # first element of a random key, as those in masked.py


class GeneratorBatch(NamedTuple):
    """A batch: masked rows for the generator, and the uniform random numbers to sample its tokens with."""

    masked: MaskedBatch
    uniform_draws: Tensor  # (B, T) in [0, 1)


class DetectionSums(NamedTuple):
    """Sums over a text: loss of the generator on masked tokens, loss and counts of the detector on all."""

    nll: float  # of the masked tokens
    n_masked: int
    detector_nll: float  # -log p of "original" or "replaced", over all tokens
    n_tokens: int
    n_found: int  # replaced tokens that are flagged
    n_flagged: int
    n_replaced: int

    def compute_metrics(self, weight: float) -> dict[str, float]:
        """The training loss in nats, perplexity of the generator, F1 of the replaced tokens."""
        nll = self.nll / max(self.n_masked, 1)
        loss = nll + weight * self.detector_nll / max(self.n_tokens, 1)
        f1 = 2 * self.n_found / max(self.n_flagged + self.n_replaced, 1)
        return {"loss": loss, "ppl": loss_to_perplexity(nll), "f1": f1}


@TASK.register("replaced-token-detection")
class ReplacedTokenDetectionTask(StoreTask[TokenStore]):
    """A small generator fills in masked tokens, and the encoder detects which tokens were replaced.

    The encoder is thus trained on every token, not only on masked ones. Rows, masks and the generator's loss
    are those of ``masked-lm``; the generator has ``model.generator_layers`` layers, the encoder's width and
    its embedding. Tokens that the generator predicts correctly count as original. Both are trained jointly,
    without a gradient through sampling.

    Equation: Σ_{t in M} -log p_G(x_t | masked x) / |M|  +  weight · Σ_t -log p_D(x̂_t = x_t or not | x̂) / |x|,
              M the masked positions
    Paper: Clark et al., 2020, sec. 2; with fewer layers of the same width: He et al., 2021
    When: as masked-lm, to learn more from each pass over a text
    Recipe: {task: replaced-token-detection, model: {generator_layers: 2}}
    Options:
      mask: share of the tokens that are masked for the generator, in every row
      whole_word: mask whole words: all tokens of a word or none
      weight: weight of the encoder's loss relative to the generator's
    """

    kind, generator = "encoder", True
    label_smoothing = 0.0
    metrics = ("loss", "f1")
    title = "An encoder that detects replaced tokens"
    usage = 'polyhead embed . "The cat sat down."'
    valid_facts: Mapping[str, str] = {"f1": "F1 of replaced tokens"}
    check = staticmethod(check_masking)
    iter_texts = staticmethod(iter_training_texts)
    shard = staticmethod(PackedRows.shard)

    def __init__(
        self,
        masked_lm: MaskedLMTask,
        *,
        mask: float = 0.15,
        whole_word: bool = False,
        weight: NonNegativeFloat = 50.0,
    ) -> None:
        self.masked_lm, self.weight, self.mask = masked_lm, weight, mask
        super().__init__(masked_lm.stores, masked_lm.config)
        self.epoch_batches, self.largest_batch = masked_lm.epoch_batches, masked_lm.largest_batch
        self.shares = masked_lm.shares
        self.count_training_tokens = masked_lm.count_training_tokens

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> ReplacedTokenDetectionTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        options = recipe.task.options
        masking = Choice("masked-lm", **{name: options[name] for name in ("mask", "whole_word")})
        masked_lm = MaskedLMTask.open(recipe.model_copy(update={"task": masking}), tokenizer, report)
        return cls(masked_lm, **options)

    def collate(self, packed_rows: PackedRows) -> GeneratorBatch:
        """Batch of training rows, with random numbers drawn by (seed, epoch, row)."""
        return _add_draws(
            self.masked_lm.collate(packed_rows),
            packed_rows,
            [SAMPLING_KEY, self.masked_lm.config.seed, packed_rows.epoch],
        )

    def dummy_batch(self) -> GeneratorBatch:
        """A batch without tokens and labels."""
        return GeneratorBatch(self.masked_lm.dummy_batch(), torch.zeros(1, 1))

    def shard_sequence(self, batch: GeneratorBatch, shard: SequenceShard) -> GeneratorBatch:
        """One rank's part of the tokens of each row."""
        masked = self.masked_lm.shard_sequence(batch.masked, shard)
        return GeneratorBatch(masked, shard.select(batch.uniform_draws))

    def count_labels(self, batch: GeneratorBatch) -> int:
        """Number of masked tokens to predict."""
        return count_masked_labels(batch.masked)

    def loss(self, model: nn.Module, batch: GeneratorBatch) -> Loss:
        """Sum of both losses, counted in masked tokens; nll is that of the generator.

        A masked token counts for 1 / ``mask`` tokens of the encoder's loss, which is a sum over all tokens.
        """
        assert isinstance(model, ReplacedTokenDetector)
        batch, host = place_batch(model, batch)
        features = masked_lm_features(model.generator, batch.masked, host.masked)
        labels, known = select_labels(batch.masked.labels, host.masked.labels)
        smoothing = self.masked_lm.config.label_smoothing or 0.0
        generator_loss = cross_entropy(features, model.generator.head, labels, smoothing, host=known)
        rows = labeled_rows(batch.masked.labels, host.masked.labels)
        draws = batch.uniform_draws.flatten().index_select(0, rows)
        samples = model.sample_tokens(features, draws)
        logits, is_replaced = _detect_replaced(model, batch.masked, samples, host.masked)
        detector_loss = F.binary_cross_entropy_with_logits(logits, is_replaced, reduction="sum")
        return generator_loss._replace(total=generator_loss.total + self.weight * self.mask * detector_loss)

    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Loss, perplexity of the generator and F1 of replaced tokens on a text."""
        return self._sum_detections(model, split, map_fn).compute_metrics(self.weight)

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Perplexity of token frequencies for the generator, and F1 if every token is flagged as replaced."""
        sums = self._sum_detections(run.model, split, map)
        f1 = 2 * sums.n_replaced / max(sums.n_tokens + sums.n_replaced, 1)
        unigram = self.masked_lm.compute_baselines(counts, run, split)
        return {"ppl": unigram["ppl"], "f1": Baseline(f1, "every token")} if unigram else {}

    @torch.no_grad()
    def detect_first_rows(self, model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
        """The first validation rows: token ids, flagged and replaced: (B, T), (B, T), (B, T).

        Token ids are those with replacements, -1 at padding.
        """
        assert isinstance(model, ReplacedTokenDetector)
        packed_rows = self.masked_lm.plan_eval("valid")[0]
        masked, draws = to_model_device(model, self._collate_eval("valid", packed_rows))
        has_label = masked.labels != IGNORE_INDEX
        samples = model.sample_tokens(masked_lm_features(model.generator, masked), draws[has_label])
        logits, is_replaced = _detect_replaced(model, masked, samples)
        is_token = torch.ones_like(has_label) if masked.pos is None else masked.pos >= 0
        original = torch.where(has_label, masked.labels, masked.tokens)
        tokens = original.masked_scatter(has_label, samples).masked_fill(~is_token, -1)
        flagged, replaced = torch.zeros_like(is_token), torch.zeros_like(is_token)
        flagged[is_token], replaced[is_token] = logits > 0, is_replaced > 0
        return tokens, flagged, replaced

    def _collate_eval(self, split: str, packed_rows: PackedRows) -> GeneratorBatch:
        masked = self.masked_lm.collate_eval(split, packed_rows)
        return _add_draws(masked, packed_rows, [SAMPLING_KEY, EVAL_KEY])

    @torch.no_grad()
    def _sum_detections(self, model: nn.Module, split: str, map_fn: MapFn) -> DetectionSums:
        """Sums over a text. Sampling is seeded: models with the same outputs get the same replaced tokens."""
        assert isinstance(model, ReplacedTokenDetector)

        def measure_batch(packed_rows: PackedRows) -> DetectionSums:
            masked, draws = to_model_device(model, self._collate_eval(split, packed_rows))
            features, has_label = masked_lm_features(model.generator, masked), masked.labels != IGNORE_INDEX
            generator_loss = token_losses(features, model.generator.head, masked.labels[has_label])
            logits, labels = _detect_replaced(model, masked, model.sample_tokens(features, draws[has_label]))
            detector_loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
            is_flagged, is_replaced = logits > 0, labels > 0
            counts = (
                int(selection.sum()) for selection in (is_flagged & is_replaced, is_flagged, is_replaced)
            )
            return DetectionSums(
                generator_loss.nll, generator_loss.n_tokens, float(detector_loss), len(logits), *counts
            )

        sums = map(sum, zip(*map_fn(measure_batch, self.masked_lm.plan_eval(split)), strict=True))
        return DetectionSums(*sums)


def _add_draws(masked: MaskedBatch, packed_rows: PackedRows, key: list[int]) -> GeneratorBatch:
    """Add uniform random numbers, seeded by row, to a masked batch."""
    draws = [
        row_rng([*key, row]).random(masked.tokens.size(1), np.float32) for row in packed_rows.rows.tolist()
    ]
    return GeneratorBatch(masked, torch.from_numpy(np.stack(draws)))


def _detect_replaced(
    model: ReplacedTokenDetector, batch: MaskedBatch, sampled_ids: Tensor, host: MaskedBatch | None = None
) -> tuple[Tensor, Tensor]:
    """Detector logits and labels (1: replaced) with ``sampled_ids`` filled in, no padding: (N,), (N,)."""
    host = host or batch
    has_label = batch.labels != IGNORE_INDEX
    original = torch.where(has_label, batch.labels, batch.tokens)
    tokens = original.masked_scatter(has_label, sampled_ids)
    logits = model(tokens, Positions.of(batch.pos, host.pos))
    labels = (tokens != original).to(torch.float32)
    if batch.pos is None:
        return logits.flatten().float(), labels.flatten()
    rows = token_rows(batch.pos, host.pos)
    return logits.flatten().index_select(0, rows).float(), labels.flatten().index_select(0, rows)
