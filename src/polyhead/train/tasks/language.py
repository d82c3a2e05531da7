"""Causal language modelling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.data.batching.length_bucketing import shard_rows
from polyhead.data.batching.token_windows import (
    SequenceShard,
    TokenWindows,
    collate_windows,
    make_dummy_windows,
    plan_windows,
    split_windows,
)
from polyhead.data.readers.plain_text import read_text_lines
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.token_store import TokenStore
from polyhead.evaluate.baselines import Baselines, TrainingCounts, unigram_baselines
from polyhead.evaluate.perplexity import compute_perplexity
from polyhead.models import CausalLM
from polyhead.nn.loss import Loss
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.distributed.process_group import MapFn
from polyhead.train.loggers import Reporter
from polyhead.train.tasks import common as causal_lm_common
from polyhead.train.tasks.base import TaskLogits
from polyhead.train.tasks.common import (
    check_rows,
    collect_test_facts,
    count_predicted_tokens,
    open_split_text,
    open_stores,
    open_token_store,
    rows_per_batch,
)


@TASK.register("language-model")
class LanguageModelingTask:
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
    labels: tuple[str, ...] = ()
    title = "A language model"
    usage = 'polyhead generate . "Once upon a time"'

    def __init__(self, train: TokenStore, valid: TokenStore, data: DataConfig, config: TrainConfig) -> None:
        self.train, self.valid, self.config = train, valid, config
        self.width, self.has_documents = data.max_len, len(train.document_starts) > 1
        self.batch_rows = rows_per_batch(config, self.width)
        _check_min_tokens(valid, "validation")
        self.identity = {"train": train.directory.name, "valid": valid.directory.name}
        self.epoch_batches(0)  # raises if the text is too short

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raise a UserError if a file is missing or is not text."""
        if recipe.init_from is None:
            check_rows(recipe)
        for split in recipe.data.splits:
            open_split_text(recipe, split)

    @classmethod
    def iter_texts(cls, recipe: Recipe) -> Iterator[str]:
        """The texts that a tokenizer is trained on."""
        return read_text_lines(open_split_text(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> LanguageModelingTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        causal_lm_common.check_causal_lm_decoding(recipe, tokenizer)
        stores = open_stores(recipe, tokenizer, report)
        if "test" in stores:
            _check_min_tokens(stores["test"], "test")
        return cls(stores["train"], stores["valid"], recipe.data, recipe.train)

    def epoch_batches(self, epoch: int) -> Sequence[IdArray]:
        """Start positions of the rows of every batch of an epoch, in order."""
        return plan_windows(len(self.train), self.width, self.batch_rows, seed=self.config.seed, epoch=epoch)

    def largest_batch(self) -> IdArray:
        """The first batch: all full batches have the same size."""
        return self.epoch_batches(0)[0]

    def shard(self, starts: IdArray, n: int) -> list[IdArray]:
        """Split the rows of a batch into n shards, or fewer."""
        return shard_rows(starts, n)

    def collate(self, starts: IdArray) -> TokenWindows:
        """Batch of rows of the training text."""
        return collate_windows(self.train, starts, self.width, has_documents=self.has_documents)

    def dummy_batch(self) -> TokenWindows:
        """A batch without tokens and labels."""
        return make_dummy_windows(self.has_documents)

    def split_sequence(self, batch: TokenWindows, shard: SequenceShard) -> TokenWindows:
        """One rank's part of the tokens of each row."""
        return split_windows(batch, shard)

    def count_labels(self, batch: TokenWindows) -> int:
        """Number of labels of a batch."""
        return causal_lm_common.count_causal_lm_labels(batch)

    def loss(self, model: nn.Module, batch: TokenWindows) -> Loss:
        """Cross-entropy, as a sum over labels."""
        return causal_lm_common.causal_lm_loss(model, batch, self.config.smoothing)

    def compute_logits(self, model: nn.Module, batch: TokenWindows) -> TaskLogits:
        """Logits of every token that has a next one."""
        return causal_lm_common.causal_lm_logits(model, batch)

    def evaluate(self, model: nn.Module, map_fn: MapFn = map) -> dict[str, float]:
        """Loss and perplexity per token, perplexity per word, bits per character of the validation text."""
        return self._measure(model, self.valid, map_fn)

    def collect_facts(self, run: Run, map_fn: MapFn = map) -> dict[str, str]:
        """The metrics of ``evaluate`` on the test text, if there is one."""
        return collect_test_facts(run, open_token_store, self._measure, map_fn)

    def count_training_tokens(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Counts of the tokens as labels."""
        return TrainingCounts.from_token_counts(count_predicted_tokens(self.train, tokenizer.vocab_size))

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Baselines from token frequencies."""
        assert run.recipe is not None
        store = self.valid if split == "valid" else open_token_store(run.recipe, split, run.tokenizer)
        label_counts = count_predicted_tokens(store, counts.vocab_size)
        report = store.report
        return unigram_baselines(counts.token_counts(), label_counts, report.words, report.characters)

    def _measure(self, model: nn.Module, store: TokenStore, map_fn: MapFn) -> dict[str, float]:
        assert isinstance(model, CausalLM)
        perplexity = compute_perplexity(model, store, self.width, self.batch_rows, map_fn)
        bits = perplexity.bits_per_character
        return {
            "loss": perplexity.loss,
            "ppl": perplexity.per_token,
            "word_ppl": perplexity.per_word,
            "bits_per_char": bits,
        }


def _check_min_tokens(store: TokenStore, split: str) -> None:
    """Raise a UserError if a text for evaluation has fewer than two tokens."""
    if len(store) < 2:
        raise UserError(f"the {split} text is only one token, so there is nothing to predict; use more text")
