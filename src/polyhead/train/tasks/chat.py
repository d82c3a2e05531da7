"""Learning to answer, from conversations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from polyhead.analysis.recovered import Recovered
from polyhead.core.i18n import tr
from polyhead.data.arrays import Ints
from polyhead.data.batches import ByLength, deal
from polyhead.data.conversation_store import ConversationStore
from polyhead.data.conversations import Conversations, open_conversations, texts
from polyhead.data.rows import Rows
from polyhead.evaluate.baselines import Baselines, count_tokens, unigram_baselines
from polyhead.evaluate.training_counts import TrainingCounts
from polyhead.nn.loss import Loss
from polyhead.recipe import Recipe, TrainConfig
from polyhead.registry import TASK, Choice
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.ranks import Each
from polyhead.train.reporting import Reporter
from polyhead.train.tasks import next_token
from polyhead.train.tasks.base import Scores, say_split, warn_of_few
from polyhead.train.tasks.plain_text import check_rows, test_facts


@TASK.register("chat")
class Chat:
    """What the assistant says in conversations, and the end of its turns; what it is asked is read and not learned.

    A line of JSONL is a conversation: {"messages": [{"role": "user", "content": ...}, {"role": "assistant", ...}]}, or
    "conversations" with "from" and "value". ``generation.chat`` says how it is written: as the run says that it begins with,
    else ``plain``. Of a conversation with more than ``data.max_len`` tokens the last answers are left out.

    Equation: -Σ_t [x_t is said by the assistant] log p(x_t | x_1 ... x_{t-1})
    Paper: Ouyang et al., 2022, sec. 3.5 (supervised fine-tuning)
    When: a language model shall answer, not go on
    Recipe: task: chat
    """

    kind = "decoder"
    label_smoothing = 0.0
    metrics = ("loss",)
    labels: tuple[str, ...] = ()
    chat = Choice("plain")  # where nothing says how conversations are written
    title = "A model that converses"
    use = "polyhead chat ."

    def __init__(
        self, train: ConversationStore, valid: ConversationStore, pad_id: int, config: TrainConfig
    ) -> None:
        self.train, self.valid, self.pad_id, self.config = train, valid, pad_id, config
        self.identity = {"train": train.directory.name, "valid": valid.directory.name}
        self.plan(0)  # a row that is larger than a batch is told now

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Every file is there and holds conversations, or a UserError says what is wrong."""
        if recipe.start is None:
            check_rows(recipe)
        for split in recipe.data.splits:
            conversations_of(recipe, split)

    @classmethod
    def texts(cls, recipe: Recipe) -> Iterator[str]:
        """What a tokenizer learns from."""
        return texts(conversations_of(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> Chat:
        """With its token stores made or found."""
        next_token.check_decoding(recipe, tokenizer)
        stores = {split: store_of(recipe, split, tokenizer) for split in recipe.data.splits}
        for split, store in stores.items():
            learned = tr(
                "{learned:,} of {count:,} tokens", learned=int(store.learned.sum()), count=len(store.ids)
            )
            say_split(report, split, store.report.describe(), learned)
            warn_of_few(store.report, recipe, report)
        task = cls(stores["train"], stores["valid"], tokenizer.pad_id, recipe.train)
        for split in recipe.data.splits[1:]:
            task.by_length(stores[split]).plan()  # a row that is larger than a batch is told now
        report.say(task.by_length(task.train).described())
        return task

    def plan(self, epoch: int) -> Sequence[Ints]:
        """The conversations of every batch of an epoch, in order."""
        return self.by_length(self.train).plan(epoch)

    def hardest(self) -> Ints:
        """The batch that needs the most memory; no epoch has a larger one."""
        return self.by_length(self.train).hardest()

    def deal(self, rows: Ints, n: int) -> list[Ints]:
        """The conversations of a batch in n parts, or fewer, for as many processes."""
        return deal(rows, n)

    def batch(self, rows: Ints) -> Rows:
        """Some conversations of the training text."""
        return self.train.batch(rows, self.pad_id)

    def count(self, batch: Rows) -> int:
        """Labels that count."""
        return next_token.count(batch)

    def loss(self, model: nn.Module, batch: Rows) -> Loss:
        """Cross-entropy as sums."""
        return next_token.loss(model, batch, self.config.smoothing)

    def scores(self, model: nn.Module, batch: Rows) -> Scores:
        """Of every token that the assistant says."""
        return next_token.scores(model, batch)

    def evaluate(self, model: nn.Module, each: Each = map) -> dict[str, float]:
        """Loss without smoothing and perplexity of what the assistant says in the validation text."""
        return self._measured(model, self.valid, each)

    def facts(self, run: Run, each: Each = map) -> dict[str, str]:
        """The same of the test text, if there is one."""
        return test_facts(run, store_of, self._measured, each)

    def count_training(self, tokenizer: Tokenizer) -> TrainingCounts:
        """How often the assistant says each token."""
        return TrainingCounts.of_tokens(count_answer_tokens(self.train, tokenizer.vocab_size))

    def baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Those of token frequencies."""
        assert run.recipe is not None
        store = self.valid if split == "valid" else store_of(run.recipe, split, run.tokenizer)
        return unigram_baselines(counts.token_counts(), count_answer_tokens(store, counts.vocab_size))

    def by_length(self, store: ConversationStore) -> ByLength:
        """The conversations of a text in batches."""
        return ByLength(store.lengths, store.lengths, self.config.max_tokens, self.config.seed)

    @torch.no_grad()
    def _measured(self, model: nn.Module, store: ConversationStore, each: Each) -> dict[str, float]:
        def read(rows: Ints) -> Recovered:
            return next_token.measured(model, store.batch(rows, self.pad_id))

        measures = Recovered.of(each(read, self.by_length(store).plan())).measures()
        return {name: measures[name] for name in ("loss", "ppl")}


def count_answer_tokens(store: ConversationStore, vocab_size: int) -> Ints:
    """How often the assistant says each token: (V,). The first token of a conversation is never asked for."""
    said = store.learned.astype(bool)
    said[store.offsets[:-1]] = False
    return count_tokens([store.ids[said]], vocab_size)


def conversations_of(recipe: Recipe, split: str) -> Conversations:
    """The files of a split; validation may be a share of the training conversations."""
    return open_conversations(*recipe.data.part(split))


def store_of(recipe: Recipe, split: str, tokenizer: Tokenizer) -> ConversationStore:
    """The conversations of a split as tokens, made or found."""
    max_len = min(recipe.data.max_len, recipe.model.max_len)
    found, chat = conversations_of(recipe, split), recipe.generation.chat or Chat.chat
    return ConversationStore.open_or_build(found, chat, tokenizer, recipe.stores, max_len=max_len)
