"""Supervised fine-tuning on conversations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.choice import Choice
from polyhead.core.i18n import tr
from polyhead.core.registry import TASK
from polyhead.data.batching.token_windows import (
    TokenWindows,
    make_dummy_windows,
    shard_windows,
)
from polyhead.data.readers.conversations import Conversations, open_conversations, read_conversation_texts
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.conversation_store import ConversationStore
from polyhead.evaluate.baselines import Baselines, TrainingCounts, count_tokens, unigram_baselines
from polyhead.evaluate.perplexity import TokenLoss
from polyhead.nn.loss import Loss
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.base import report_split, warn_if_few_used, warn_learned_texts
from polyhead.train.tasks.common import (
    causal_lm_logits,
    causal_lm_loss,
    causal_lm_token_loss,
    check_causal_lm_decoding,
    check_rows,
    count_causal_lm_labels,
    measure_token_loss,
)
from polyhead.train.tasks.store_task import RowTask


@TASK.register("chat")
class ChatTask(RowTask[ConversationStore]):
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
    chat = Choice("plain")  # default chat template
    title = "A chat model"
    usage = "polyhead chat ."
    dummy_batch = staticmethod(make_dummy_windows)
    shard_sequence = staticmethod(shard_windows)
    count_labels = staticmethod(count_causal_lm_labels)
    compute_logits = staticmethod(causal_lm_logits)

    def __init__(self, stores: Mapping[str, ConversationStore], pad_id: int, config: TrainConfig) -> None:
        super().__init__(stores, config)
        self.pad_id = pad_id

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
        check_causal_lm_decoding(recipe, tokenizer)
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
            if split != "train":
                texts = store.hash_texts()
                warn_learned_texts(split, texts, None, stores["train"].hash_texts(), report)
        task = cls(stores, tokenizer.pad_id, recipe.train)
        report.info(task.make_sampler(task.train).describe())
        return task

    def make_batch(self, split: str, rows: IdArray) -> TokenWindows:
        return self.stores[split].collate(rows, self.pad_id)

    def loss(self, model: nn.Module, batch: TokenWindows) -> Loss:
        """Cross-entropy, as a sum over labels."""
        return causal_lm_loss(model, batch, self.config.label_smoothing or 0.0)

    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Loss without smoothing and perplexity of the assistant tokens of a text."""

        def measure_batch(rows: IdArray) -> TokenLoss:
            return causal_lm_token_loss(model, self.make_batch(split, rows))

        metrics = measure_token_loss(
            measure_batch, [self.plan_eval(split)], map_fn, self.stores[split].report
        )
        return {name: metrics[name] for name in ("loss", "ppl")}

    def count_training_tokens(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Counts of the assistant tokens."""
        return TrainingCounts.from_token_counts(count_answer_tokens(self.train, tokenizer.vocab_size))

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Baselines from token frequencies."""
        labels = count_answer_tokens(self.stores[split], counts.vocab_size)
        return unigram_baselines(counts.token_counts(), labels)


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
