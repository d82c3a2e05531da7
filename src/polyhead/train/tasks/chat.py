"""Supervised fine-tuning on conversations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.choice import Choice
from polyhead.core.i18n import tr
from polyhead.core.registry import TASK
from polyhead.data.batching.length_bucketing import LengthBucketSampler, shard_rows
from polyhead.data.batching.token_windows import (
    SequenceShard,
    TokenWindows,
    make_dummy_windows,
    split_windows,
)
from polyhead.data.readers.conversations import Conversations, open_conversations, read_conversation_texts
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.conversation_store import ConversationStore
from polyhead.evaluate.baselines import Baselines, TrainingCounts, count_tokens, unigram_baselines
from polyhead.evaluate.perplexity import TokenLoss
from polyhead.nn.loss import Loss
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.distributed.process_group import MapFn
from polyhead.train.loggers import Reporter
from polyhead.train.tasks import common as causal_lm_common
from polyhead.train.tasks.base import TaskLogits, report_split, warn_if_few_used
from polyhead.train.tasks.common import check_rows, collect_test_facts


@TASK.register("chat")
class ChatTask:
    """Supervised fine-tuning on conversations: the labels are the assistant's messages and ends of turn.

    A line of JSONL is a conversation: {"messages": [{"role": "user", "content": ...}, {"role": "assistant",
    ...}]}, or "conversations" with "from" and "value". ``generation.chat`` is the chat template; its default
    is that of the run in ``init_from``, else ``plain``. If a conversation has more than ``data.max_len``
    tokens, its last answers are left out.

    Equation: -Σ_t [x_t is an assistant token] log p(x_t | x_1 ... x_{t-1})
    Paper: Ouyang et al., 2022, sec. 3.5 (supervised fine-tuning)
    When: a language model should answer messages, not continue texts
    Recipe: task: chat
    """

    kind = "decoder"
    label_smoothing = 0.0
    metrics = ("loss",)
    labels: tuple[str, ...] = ()
    chat = Choice("plain")  # default chat template
    title = "A chat model"
    usage = "polyhead chat ."

    def __init__(
        self, train: ConversationStore, valid: ConversationStore, pad_id: int, config: TrainConfig
    ) -> None:
        self.train, self.valid, self.pad_id, self.config = train, valid, pad_id, config
        self.identity = {"train": train.directory.name, "valid": valid.directory.name}
        self.epoch_batches(0)  # raises if a row is larger than a batch

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raise a UserError if a file is missing or has no conversations."""
        if recipe.init_from is None:
            check_rows(recipe)
        for split in recipe.data.splits:
            open_split_conversations(recipe, split)

    @classmethod
    def iter_texts(cls, recipe: Recipe) -> Iterator[str]:
        """The texts that a tokenizer is trained on."""
        return read_conversation_texts(open_split_conversations(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> ChatTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        causal_lm_common.check_causal_lm_decoding(recipe, tokenizer)
        stores = {split: open_conversation_store(recipe, split, tokenizer) for split in recipe.data.splits}
        for split, store in stores.items():
            summary = tr(
                "{learned:,} of {count:,} tokens",
                learned=int(store.assistant_mask.sum()),
                count=len(store.ids),
            )
            unknown = store.count_unknown(tokenizer)
            report_split(report, split, store.report.describe(), summary, unknown=unknown)
            warn_if_few_used(store.report, recipe, report)
        task = cls(stores["train"], stores["valid"], tokenizer.pad_id, recipe.train)
        for split in recipe.data.splits[1:]:
            task.make_sampler(stores[split]).epoch_batches()  # raises if a row is larger than a batch
        report.info(task.make_sampler(task.train).describe())
        return task

    def epoch_batches(self, epoch: int) -> Sequence[IdArray]:
        """Row numbers of the conversations of every batch of an epoch, in order."""
        return self.make_sampler(self.train).epoch_batches(epoch)

    def largest_batch(self) -> IdArray:
        """Row numbers of the largest batch; no epoch has a larger one."""
        return self.make_sampler(self.train).largest_batch()

    def shard(self, rows: IdArray, n: int) -> list[IdArray]:
        """Split the conversations of a batch into n shards, or fewer."""
        return shard_rows(rows, n)

    def collate(self, rows: IdArray) -> TokenWindows:
        """Batch of some training conversations."""
        return self.train.collate(rows, self.pad_id)

    def dummy_batch(self) -> TokenWindows:
        """A batch without tokens and labels."""
        return make_dummy_windows()

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
        """Logits of every assistant token."""
        return causal_lm_common.causal_lm_logits(model, batch)

    def evaluate(self, model: nn.Module, map_fn: MapFn = map) -> dict[str, float]:
        """Loss without smoothing and perplexity of the assistant tokens of the validation text."""
        return self._measure(model, self.valid, map_fn)

    def collect_facts(self, run: Run, map_fn: MapFn = map) -> dict[str, str]:
        """Loss and perplexity of the test text, if there is one."""
        return collect_test_facts(run, open_conversation_store, self._measure, map_fn)

    def count_training_tokens(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Counts of the assistant tokens."""
        return TrainingCounts.from_token_counts(count_answer_tokens(self.train, tokenizer.vocab_size))

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Baselines from token frequencies."""
        assert run.recipe is not None
        store = self.valid if split == "valid" else open_conversation_store(run.recipe, split, run.tokenizer)
        return unigram_baselines(counts.token_counts(), count_answer_tokens(store, counts.vocab_size))

    def make_sampler(self, store: ConversationStore) -> LengthBucketSampler:
        """Batch sampler over the conversations of a store."""
        return LengthBucketSampler(store.lengths, store.lengths, self.config.max_tokens, self.config.seed)

    @torch.no_grad()
    def _measure(self, model: nn.Module, store: ConversationStore, map_fn: MapFn) -> dict[str, float]:
        def measure_batch(rows: IdArray) -> TokenLoss:
            return causal_lm_common.causal_lm_token_loss(model, store.collate(rows, self.pad_id))

        metrics = TokenLoss.from_parts(
            map_fn(measure_batch, self.make_sampler(store).epoch_batches())
        ).compute_metrics()
        return {name: metrics[name] for name in ("loss", "ppl")}


def count_answer_tokens(store: ConversationStore, vocab_size: int) -> IdArray:
    """Counts of the assistant tokens: (V,). The first token of a conversation is never a label."""
    is_label = store.assistant_mask.astype(bool)
    is_label[store.offsets[:-1]] = False
    return count_tokens([store.ids[is_label]], vocab_size)


def open_split_conversations(recipe: Recipe, split: str) -> Conversations:
    """Open the files of a split; validation may be a share of the training conversations."""
    return open_conversations(*recipe.data.select_split(split))


def open_conversation_store(recipe: Recipe, split: str, tokenizer: Tokenizer) -> ConversationStore:
    """The tokenized conversations of a split, built or loaded from the cache."""
    max_len = min(recipe.data.max_len, recipe.model.max_len)
    conversations, chat = open_split_conversations(recipe, split), recipe.generation.chat or ChatTask.chat
    return ConversationStore.open_or_build(
        conversations, chat, tokenizer, recipe.token_cache_dir, max_len=max_len
    )
