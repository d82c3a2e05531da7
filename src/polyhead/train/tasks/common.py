"""Functions shared by tasks on unlabelled text: opening, checking and tokenizing it, baselines and facts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.cache.factory import make_cache
from polyhead.chat.apply_template import check_vocabulary
from polyhead.config.corpora import CorpusConfig
from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError, prefix_errors
from polyhead.core.i18n import tr
from polyhead.core.output_paths import expand_folders
from polyhead.core.registry import CHAT
from polyhead.cost.decoding import cache_shape
from polyhead.data.batching.collate import PairBatch
from polyhead.data.batching.mixture import mix_segments
from polyhead.data.batching.packing import Segments, count_segments, cut_segments, split_corpora
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.data.readers.detect_language import describe_mixed_languages
from polyhead.data.readers.plain_text import TextFiles, merge_texts, open_text, read_text_lines
from polyhead.data.readers.tabular import ColumnKey, inherit_format
from polyhead.data.readers.text_filter import NO_RULES
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.token_store import TokenStore
from polyhead.evaluate.baselines import Baselines, TrainingCounts, count_tokens, unigram_baselines
from polyhead.evaluate.perplexity import TokenLoss, token_losses
from polyhead.generation.settings import eos_ids_for
from polyhead.grammar.grammar_constraint import constraint_for
from polyhead.models import CausalLM, Ensemble, Seq2Seq
from polyhead.nn.device import place_batch
from polyhead.nn.embedding import Head
from polyhead.nn.loss import Loss, cross_entropy, labeled_rows, select_labels
from polyhead.nn.positions import Positions
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.base import TaskLogits, report_split, warn_learned_texts
from polyhead.train.tasks.corpora import list_shares, make_mixture, make_text_rules, name_losses
from polyhead.train.tasks.store_task import StoreTask


def open_split_text(recipe: Recipe, split: str) -> TextFiles:
    """Open the files of a split as set in the recipe; validation may be the end of the training text.

    Of TSV and JSONL files, the column ``data.text`` is read.
    """
    data = recipe.data

    def open_one(corpus: CorpusConfig | None = None) -> TextFiles:
        files, share, is_validation = data.select_split(split, corpus)
        fraction_range = (1.0 - share, 1.0) if share and is_validation else (0.0, 1.0 - share)
        text = open_text(files, data.document_separator, fraction_range, data.text, data.format)
        rules = make_text_rules(corpus, split, corpus.source_lang) if corpus else NO_RULES
        if corpus and rules != NO_RULES and text.document_separator == "file":
            raise UserError(
                f"data.{split}: corpus {corpus.name!r}: a filter and max_texts are for texts of a line or "
                "paragraph, and each file is one text here: set data.document_separator=line or blank"
            )
        return replace(text, name=corpus.name, rules=rules) if corpus else text

    corpora = data.list_corpora(split)
    return merge_texts([*map(open_one, corpora)]) if corpora else open_one()


def iter_training_texts(recipe: Recipe) -> Iterator[str]:
    """The texts that a tokenizer is trained on."""
    return read_text_lines(open_split_text(recipe, "train"))


def open_text_like(
    files: Sequence[Path], recipe: Recipe | None, columns: Sequence[ColumnKey] = ()
) -> TextFiles:
    """Open other files with the settings of a recipe; of tables, ``columns`` or else the recipe's column.

    Of a folder, its text files.
    """
    files = expand_folders(files)
    if recipe is None:
        return open_text(files, "file", columns=columns or DataConfig.model_fields["text"].default)
    data = recipe.data
    format = inherit_format(files, data.list_files("train"), data.format)
    return open_text(files, data.document_separator, columns=columns or data.text, format=format)


def open_token_store(recipe: Recipe, split: str, tokenizer: Tokenizer) -> TokenStore:
    """The tokenized text of a split, built or loaded from the cache."""
    prefix = tokenizer.prefix_ids if recipe.model.kind == "decoder" else ()
    return TokenStore.open_or_build(open_split_text(recipe, split), tokenizer, recipe.token_cache_dir, prefix)


def check_text(recipe: Recipe, min_len: int = 0) -> None:
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


class SegmentTask(StoreTask[TokenStore]):
    """An opened task on segments of documents, which are cut at another offset in every epoch."""

    iter_texts = staticmethod(iter_training_texts)

    def __init__(
        self,
        stores: Mapping[str, TokenStore],
        tokenizer: Tokenizer,
        data: DataConfig,
        config: TrainConfig,
        segment_len: int,
    ) -> None:
        super().__init__(stores, config)
        self.tokenizer, self.segment_len = tokenizer, segment_len
        self.corpora = split_corpora(self.train, tokenizer.eos_id)
        self.mixture = make_mixture(data, config.seed)
        sizes = [count_segments(documents, segment_len) for documents in self.corpora]
        self.shares = list_shares(self.mixture, sizes, self.train.report)
        if not self.epoch_batches(0):
            raise UserError(f"{self.train.report.source_label}: no tokens to train on")

    @abstractmethod
    def epoch_batches(self, epoch: int) -> Sequence[Any]:
        """The rows of every batch of an epoch, in order."""

    @abstractmethod
    def plan_eval_batches(self, segments: Segments) -> list[Any]:
        """The batches of segments for evaluation."""

    @abstractmethod
    def collate_eval(self, split: str, batch: Any) -> Any:
        """Batch for evaluation. It does not depend on ``train.seed``: models are comparable."""

    def cut_epoch(self, epoch: int, rng: np.random.Generator) -> Segments:
        """The segments of an epoch."""
        if self.mixture:
            return mix_segments(self.mixture, self.corpora, self.segment_len, epoch)
        return cut_segments(self.corpora[0], self.segment_len, rng)

    def plan_corpora(self, split: str) -> list[list[Any]]:
        """The batches of each corpus; documents are split from their start, without an offset."""
        corpora = split_corpora(self.stores[split], self.tokenizer.eos_id)
        return [self.plan_eval_batches(cut_segments(part, self.segment_len, None)) for part in corpora]

    def plan_eval(self, split: str) -> list[Any]:
        """The rows of every batch for evaluation."""
        return [batch for plan in self.plan_corpora(split) for batch in plan]

    def eval_batches(self, split: str) -> Iterator[tuple[IdArray, Any]]:
        """Row numbers and batches of a text for evaluation."""
        return ((batch.rows, self.collate_eval(split, batch)) for batch in self.plan_eval(split))

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Baselines from token frequencies, on the tokens to predict."""
        return compute_label_baselines(counts, (batch.labels for _, batch in self.eval_batches(split)))


@torch.no_grad()
def measure_token_loss(
    measure_batch: Callable[[Any], TokenLoss], plans: Sequence[Sequence[Any]], map_fn: MapFn, report: Any
) -> dict[str, float]:
    """Loss, perplexity and accuracy per predicted token, of the batches of all corpora; the loss of each."""
    parts = [TokenLoss.from_parts(map_fn(measure_batch, batches)) for batches in plans]
    losses = [part.compute_metrics()["loss"] for part in parts]
    return TokenLoss.from_parts(parts).compute_metrics() | name_losses(report, losses)


def open_stores(recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> dict[str, TokenStore]:
    """The tokenized text of every split, also of the test text, so that errors in it are raised early."""
    check_rows(recipe)
    stores = {split: open_token_store(recipe, split, tokenizer) for split in recipe.data.splits}
    for split, store in stores.items():
        summary, unknown = tr("{count:,} tokens", count=len(store)), store.count_unknown(tokenizer)
        report_split(report, split, store.report.describe(), summary, unknown=unknown)
    training_texts = stores["train"].hash_texts(tokenizer.eos_id)
    for split in [split for split in stores if split != "train"]:
        texts = stores[split].hash_texts(tokenizer.eos_id)
        warn_learned_texts(split, texts, None, training_texts, report)
    text = open_split_text(recipe, "train")
    if text.table is None and not text.corpora and (warning := describe_mixed_languages(text.files)):
        report.info(tr("warning: {message}", message=warning))
    return stores


def check_causal_lm_decoding(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Check the generation settings before training, so that generation cannot fail afterwards."""
    with prefix_errors("generation.stop_tokens"):
        ends = eos_ids_for(recipe.generation, tokenizer)
    with prefix_errors("generation.grammar"):
        constraint_for(recipe.generation.grammar, tokenizer, ends)
    if recipe.generation.chat:
        with prefix_errors("generation.chat"):
            check_vocabulary(CHAT.build(recipe.generation.chat), tokenizer)
    check_cache(recipe, tokenizer)


def count_causal_lm_labels(batch: TokenWindows) -> int:
    """Number of labels of a batch."""
    return int((batch.labels >= 0).sum())


def causal_lm_features(
    model: CausalLM | Ensemble, batch: TokenWindows, host: TokenWindows | None = None
) -> Tensor:
    """Features that the LM head reads: (B, T, C). ``host`` is the batch on the CPU."""
    # causal attention never reaches padding on the right, so most models need no padding mask
    needs_pos = batch.has_documents or (batch.pos is not None and model.needs_padding_mask)
    return model.features(batch.tokens, Positions.of(batch.pos, (host or batch).pos) if needs_pos else None)


def causal_lm_loss(model: nn.Module, batch: TokenWindows, smoothing: float = 0.0) -> Loss:
    """Cross-entropy, as a sum over labels."""
    assert isinstance(model, CausalLM)
    batch, host = place_batch(model, batch)
    features = causal_lm_features(model, batch, host)
    return cross_entropy(features, model.head, batch.labels, smoothing, host=host.labels)


def causal_lm_token_loss(model: nn.Module, batch: TokenWindows) -> TokenLoss:
    """The token losses without smoothing, of a model or an ensemble."""
    assert isinstance(model, CausalLM | Ensemble)
    batch, host = place_batch(model, batch)
    return token_losses(causal_lm_features(model, batch, host), model.head, batch.labels)


def causal_lm_logits(model: nn.Module, batch: TokenWindows) -> TaskLogits:
    """Logits of every position with a label."""
    assert isinstance(model, CausalLM)
    batch, host = place_batch(model, batch)
    return labeled_logits(model.head, causal_lm_features(model, batch, host), batch.labels, host.labels)


def count_pair_labels(batch: PairBatch) -> int:
    """Number of labels of a batch."""
    return batch.n_tokens


def labeled_logits(head: Head, features: Tensor, labels: Tensor, host: Tensor) -> TaskLogits:
    """Logits of every position with a label, of features (B, T, C); ``host`` are the labels on the CPU."""
    hidden = features.flatten(0, 1).index_select(0, labeled_rows(labels, host))
    labels, known = select_labels(labels, host)
    return TaskLogits(head(hidden), labels, hidden, known)


def seq2seq_features(model: Seq2Seq | Ensemble, batch: PairBatch, host: PairBatch | None = None) -> Tensor:
    """Features that the LM head reads: (B, T, C). ``host`` is the batch on the CPU."""
    # causal attention never reaches padding on the right, so most models need no padding mask
    needs_pos, host = model.needs_padding_mask or batch.shard_pos is not None, host or batch
    target_pos = Positions.of(batch.target_pos, host.target_pos) if needs_pos else None
    source_pos = Positions.of(batch.source_pos, host.source_pos)
    return model.features(batch.source, batch.target, source_pos, target_pos)


def seq2seq_loss(model: nn.Module, batch: PairBatch, smoothing: float) -> Loss:
    """Label-smoothed cross-entropy, as a sum over labels."""
    assert isinstance(model, Seq2Seq)
    batch, host = place_batch(model, batch)
    features = seq2seq_features(model, batch, host)
    return cross_entropy(features, model.head, batch.labels, smoothing, host=host.labels)


def seq2seq_logits(model: nn.Module, batch: PairBatch) -> TaskLogits:
    """Logits of every target token."""
    assert isinstance(model, Seq2Seq)
    batch, host = place_batch(model, batch)
    return labeled_logits(model.head, seq2seq_features(model, batch, host), batch.labels, host.labels)


def check_seq2seq_decoding(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Check the generation settings before training, so that generation cannot fail afterwards."""
    with prefix_errors("generation.bad_words"):
        for token in recipe.generation.bad_words:
            tokenizer.target_tokenizer.token_to_id(token)
    with prefix_errors("generation.stop_tokens"):
        eos_ids_for(recipe.generation, tokenizer.target_tokenizer)
    check_cache(recipe, tokenizer)


def check_cache(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Raise a UserError if ``generation.cache`` does not fit the model."""
    if recipe.generation.cache:
        config = recipe.model.with_vocabulary(tokenizer.vocab_size)
        with prefix_errors("generation.cache"):
            make_cache(recipe.generation.cache, cache_shape(config), 1, config.max_len)
