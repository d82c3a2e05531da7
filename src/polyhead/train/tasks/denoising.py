"""Denoising pre-training of an encoder-decoder (BART, T5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from torch import nn

from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.data.batching.collate import PairBatch, collate_pairs, make_dummy_pairs, shard_pair_tokens
from polyhead.data.batching.length_bucketing import LengthBucketSampler
from polyhead.data.batching.masking import (
    corrupt_spans,
    even_spans,
    infill_spans,
    permute_sentences,
    poisson_spans,
    row_rng,
    span_counts,
)
from polyhead.data.batching.packing import Segments
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.token_store import TokenStore
from polyhead.evaluate.baselines import TrainingCounts, count_tokens
from polyhead.evaluate.perplexity import TokenLoss, token_losses
from polyhead.models.ensemble import Ensemble
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.device import to_model_device
from polyhead.nn.loss import Loss
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.word_boundaries import find_word_boundaries
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.common import (
    SegmentTask,
    check_seq2seq_decoding,
    check_text,
    count_pair_labels,
    measure_token_loss,
    open_stores,
    seq2seq_features,
    seq2seq_logits,
    seq2seq_loss,
)

_PLAN_KEY, _NOISE_KEY, _EVAL_KEY = 4, 5, 6  # first element of a random key: what is drawn
DEFAULT_SHARES = {
    "infilling": 0.3,
    "spans": 0.15,
}  # Lewis et al., 2020, sec. 2.2; Raffel et al., 2020, sec. 3.3.4

MAX_COUNTED_TOKENS = 1_000_000  # training tokens that are counted for baselines


class TextRows(NamedTuple):
    """Rows of an epoch, with their segments."""

    epoch: int
    rows: IdArray  # (B,) row numbers in the epoch
    segments: Segments

    def shard(self, n: int) -> list[TextRows]:
        """Split into at most n shards, rows in turn; no shard is empty."""
        shards = range(min(n, len(self.rows)))
        return [
            TextRows(self.epoch, self.rows[i::n], Segments(*(part[i::n] for part in self.segments)))
            for i in shards
        ]


@TASK.register("denoising")
class DenoisingTask(SegmentTask):
    """The encoder reads a corrupted text, and the decoder reconstructs all of it, or the missing spans.

    "infilling" (BART): spans with lengths drawn from Poisson(``span``), also empty ones, are replaced by one
    mask each; the target is the whole text. "spans" (T5): every span is replaced by a sentinel of its own;
    the target is the spans, each after its sentinel; the tokenizer needs ``tokenizer.sentinels``. Documents
    longer than ``data.max_len`` are split.

    Equation: -Σ_t log p(y_t | y_1 ... y_{t-1}, corrupted x)
    Paper: Lewis et al., 2020; Raffel et al., 2020
    When: to pre-train an encoder-decoder before it is fine-tuned on translation or summarization
    Recipe: task: {name: denoising, noise: spans}
    Options:
      noise: how the text is corrupted, infilling or spans
      share: share of the tokens that are masked; default 0.3 for infilling and 0.15 for spans
      span: mean length of a span in tokens
      permute: whether to shuffle the sentences as well; infilling only
    """

    kind = "encoder-decoder"
    label_smoothing = 0.0
    metrics = ("loss", "accuracy")
    title = "A denoising encoder-decoder"
    usage = "polyhead train recipe.yaml init_from=."
    valid_facts: Mapping[str, str] = {"accuracy": "accuracy"}
    shard = staticmethod(TextRows.shard)
    dummy_batch = staticmethod(make_dummy_pairs)
    shard_sequence = staticmethod(shard_pair_tokens)
    count_labels = staticmethod(count_pair_labels)
    compute_logits = staticmethod(seq2seq_logits)

    def __init__(
        self,
        stores: Mapping[str, TokenStore],
        tokenizer: Tokenizer,
        data: DataConfig,
        config: TrainConfig,
        *,
        noise: Literal["infilling", "spans"] = "infilling",
        share: float | None = None,
        span: float = 3.0,
        permute: bool = False,
    ) -> None:
        self.noise, self.share, self.span = noise, DEFAULT_SHARES[noise] if share is None else share, span
        segment_len = data.max_len - tokenizer.seq2seq_template.max_special
        self.sentence_ends = find_word_boundaries(tokenizer).ends_sentence if permute else None
        self.sentinels = np.array(tokenizer.sentinel_ids, dtype=np.int64)
        if noise == "spans":
            _check_spans(segment_len, self.share, span, len(self.sentinels))
        super().__init__(stores, tokenizer, data, config, segment_len)

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raise a UserError if an option is out of range, or a file is missing or is not text."""
        options = recipe.task.options
        share = DEFAULT_SHARES[options["noise"]] if options["share"] is None else options["share"]
        if not 0 < share <= 1:
            raise UserError(f"share of task 'denoising' must be above 0 and at most 1, not {share}")
        if not 0 < options["span"] <= recipe.data.max_len:
            raise UserError(
                "span of task 'denoising' must be a number of tokens above 0 and at most "
                f"data.max_len, not {options['span']}"
            )
        if options["noise"] == "spans":
            if options["permute"]:
                raise UserError(
                    "permute of task 'denoising' requires noise=infilling, where the whole text is generated"
                )
            if recipe.init_from is None:
                _check_spans(recipe.data.max_len - 1, share, options["span"], recipe.tokenizer.sentinels)
        check_text(recipe, min_len=3)

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> DenoisingTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        if tokenizer.has_target_vocabulary:
            raise UserError("task 'denoising' requires one vocabulary; source and target have one each")
        check_seq2seq_decoding(recipe, tokenizer)
        stores = open_stores(recipe, tokenizer, report)
        task = cls(stores, tokenizer, recipe.data, recipe.train, **recipe.task.options)
        for split in recipe.data.splits[1:]:
            task.plan_eval(split)  # raises if a text is larger than a batch
        report.info(task._make_sampler(task._cut_segments(0), recipe.train.seed).describe())
        return task

    def epoch_batches(self, epoch: int) -> Sequence[TextRows]:
        """The rows of every batch of an epoch, in order."""
        return self._plan_batches(self._cut_segments(epoch), epoch, self.config.seed)

    def largest_batch(self) -> TextRows:
        """The rows of the largest batch."""
        segments = self._cut_segments(0)
        rows = self._make_sampler(segments, self.config.seed).largest_batch()
        return TextRows(0, rows, segments.select(rows))

    def collate(self, text_rows: TextRows) -> PairBatch:
        """Batch of some training rows, with noise drawn by (seed, epoch, row)."""
        return self._corrupt_rows(self.train, text_rows, [_NOISE_KEY, self.config.seed, text_rows.epoch])

    def loss(self, model: nn.Module, batch: PairBatch) -> Loss:
        """Cross-entropy, as a sum over labels."""
        return seq2seq_loss(model, batch, self.config.label_smoothing or 0.0)

    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Loss, perplexity and accuracy of the targets of a text, with teacher forcing."""
        assert isinstance(model, Seq2Seq | Ensemble)

        def measure_batch(text_rows: TextRows) -> TokenLoss:
            batch = to_model_device(model, self.collate_eval(split, text_rows))
            return token_losses(seq2seq_features(model, batch), model.head, batch.labels)

        return measure_token_loss(measure_batch, self.plan_corpora(split), map_fn, self.stores[split].report)

    def count_training_tokens(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Counts of the target tokens in the first batches of an epoch."""
        counts: IdArray = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        for text_rows in self.epoch_batches(0):
            counts += count_tokens([self.collate(text_rows).labels.numpy().ravel()], len(counts))
            if counts.sum() >= MAX_COUNTED_TOKENS:
                break
        return TrainingCounts.from_token_counts(counts)

    def _cut_segments(self, epoch: int) -> Segments:
        return self.cut_epoch(epoch, row_rng([_PLAN_KEY, self.config.seed, epoch]))

    def _max_lengths(self, segments: Segments) -> tuple[IdArray, IdArray]:
        """Maximum lengths of source and target of each segment: (N,), (N,)."""
        n_source_special, n_target_special = self.tokenizer.seq2seq_template.num_special
        if self.noise == "infilling":  # there are at most as many masks as masked tokens
            return segments.lengths + n_source_special, segments.lengths + n_target_special
        counts_of = {n: span_counts(n, self.share, self.span) for n in np.unique(segments.lengths).tolist()}
        counts = np.array([counts_of[n] for n in segments.lengths.tolist()], dtype=np.int64).reshape(-1, 2)
        n_covered, n_spans = counts[:, 0], counts[:, 1]
        return (
            segments.lengths - n_covered + n_spans + n_source_special,
            n_covered + n_spans + 1 + n_target_special,
        )

    def _make_sampler(self, segments: Segments, seed: int) -> LengthBucketSampler:
        return LengthBucketSampler(*self._max_lengths(segments), self.config.max_tokens, seed)

    def plan_eval_batches(self, segments: Segments) -> list[TextRows]:
        return self._plan_batches(segments, 0, 0)

    def _plan_batches(self, segments: Segments, epoch: int, seed: int) -> list[TextRows]:
        plan = self._make_sampler(segments, seed).epoch_batches(epoch)
        return [TextRows(epoch, rows, segments.select(rows)) for rows in plan]

    def _corrupt_rows(self, store: TokenStore, text_rows: TextRows, key: list[int]) -> PairBatch:
        pairs = []
        for row, start, length in zip(
            text_rows.rows.tolist(), *(part.tolist() for part in text_rows.segments), strict=True
        ):
            pairs.append(
                self._make_pair(store.ids[start : start + length].astype(np.int64), row_rng([*key, row]))
            )
        sources, targets = ([side.tolist() for side in sides] for sides in zip(*pairs, strict=True))
        return collate_pairs(sources, targets, self.tokenizer)

    def _make_pair(self, ids: IdArray, rng: np.random.Generator) -> tuple[IdArray, IdArray]:
        """Corrupted source and target of a text."""
        if self.noise == "spans":
            return corrupt_spans(ids, even_spans(len(ids), self.share, self.span, rng), self.sentinels)
        source = ids if self.sentence_ends is None else permute_sentences(ids, self.sentence_ends[ids], rng)
        return infill_spans(
            source, poisson_spans(len(ids), self.share, self.span, rng), self.tokenizer.mask_id
        ), ids

    def collate_eval(self, split: str, text_rows: TextRows) -> PairBatch:
        return self._corrupt_rows(self.stores[split], text_rows, [_EVAL_KEY, 0])


def _check_spans(row_len: int, share: float, span: float, sentinels: int) -> None:
    """Raise a UserError if rows of ``row_len`` tokens need too many sentinels or have longer targets."""
    n_covered, n_spans = span_counts(row_len, share, span)
    if n_spans + 1 > sentinels:
        raise UserError(
            f"noise=spans hides {n_spans} spans of {row_len} tokens and requires {n_spans + 1} sentinels; "
            f"the tokenizer has {sentinels}: set tokenizer.sentinels={max(100, n_spans + 1)}"
        )
    if n_covered + n_spans + 1 > row_len:
        raise UserError(
            f"noise=spans writes {n_covered + n_spans + 1} tokens for {row_len} input tokens, more than "
            "data.max_len: set a smaller share or a longer span"
        )
