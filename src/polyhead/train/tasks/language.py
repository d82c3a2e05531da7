"""Learning to say what comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from polyhead.analysis.perplexity import perplexity
from polyhead.data.arrays import Ints
from polyhead.data.batches import deal
from polyhead.data.rows import Rows, collate_rows, plan_rows
from polyhead.data.text import texts
from polyhead.data.token_store import TokenStore
from polyhead.data_sections import DataConfig
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baselines, unigram_baselines
from polyhead.evaluate.training_counts import TrainingCounts
from polyhead.models import CausalLM
from polyhead.nn.loss import Loss
from polyhead.recipe import Recipe, TrainConfig
from polyhead.registry import TASK
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.ranks import Each
from polyhead.train.reporting import Reporter
from polyhead.train.tasks import next_token
from polyhead.train.tasks.base import Scores
from polyhead.train.tasks.plain_text import (
    asked_tokens,
    check_rows,
    open_stores,
    rows_of,
    store_of,
    test_facts,
    text_of,
)


@TASK.register("language-model")
class LanguageModel:
    """Every token of a long text predicts the next one.

    The text is cut into rows of ``data.max_len`` tokens, elsewhere in every epoch. Where it has several documents,
    positions begin again with each, and none sees another.

    Equation: -Σ_t log p(x_t | x_1 ... x_{t-1})
    Paper: Bengio et al., 2003; Radford et al., 2018
    When: there is text to be continued, without pairs
    Recipe: task: language-model
    """

    kind = "decoder"
    label_smoothing = 0.0  # a language model is judged by its probabilities as they are
    metrics = ("loss",)
    labels: tuple[str, ...] = ()
    title = "A language model"
    use = 'polyhead generate . "Once upon a time"'

    def __init__(self, train: TokenStore, valid: TokenStore, data: DataConfig, config: TrainConfig) -> None:
        self.train, self.valid, self.config = train, valid, config
        self.width, self.documents = data.max_len, len(train.begins) > 1
        self.rows = rows_of(config, self.width)
        _check_predicts(valid, "validation")
        self.identity = {"train": train.directory.name, "valid": valid.directory.name}
        self.plan(0)  # a text that is too short is told now

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Every file is there and is text, or a UserError says what is wrong."""
        if recipe.start is None:
            check_rows(recipe)
        for split in recipe.data.splits:
            text_of(recipe, split)

    @classmethod
    def texts(cls, recipe: Recipe) -> Iterator[str]:
        """What a tokenizer learns from."""
        return texts(text_of(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> LanguageModel:
        """With its token stores made or found."""
        next_token.check_decoding(recipe, tokenizer)
        stores = open_stores(recipe, tokenizer, report)
        if "test" in stores:
            _check_predicts(stores["test"], "test")
        return cls(stores["train"], stores["valid"], recipe.data, recipe.train)

    def plan(self, epoch: int) -> Sequence[Ints]:
        """The first tokens of the rows of every batch of an epoch, in order."""
        return plan_rows(len(self.train), self.width, self.rows, seed=self.config.seed, epoch=epoch)

    def hardest(self) -> Ints:
        """All full batches are alike."""
        return self.plan(0)[0]

    def deal(self, starts: Ints, n: int) -> list[Ints]:
        """The rows of a batch in n parts, or fewer, for as many processes."""
        return deal(starts, n)

    def batch(self, starts: Ints) -> Rows:
        """Rows of the training text."""
        return collate_rows(self.train, starts, self.width, documents=self.documents)

    def count(self, batch: Rows) -> int:
        """Labels that count."""
        return next_token.count(batch)

    def loss(self, model: nn.Module, batch: Rows) -> Loss:
        """Cross-entropy as sums."""
        return next_token.loss(model, batch, self.config.smoothing)

    def scores(self, model: nn.Module, batch: Rows) -> Scores:
        """Of every token that has a next one."""
        return next_token.scores(model, batch)

    def evaluate(self, model: nn.Module, each: Each = map) -> dict[str, float]:
        """Loss and perplexity a token, perplexity a word and bits a character of the validation text."""
        return self._measured(model, self.valid, each)

    def facts(self, run: Run, each: Each = map) -> dict[str, str]:
        """Perplexity of the test text, if there is one."""
        return test_facts(run, store_of, self._measured, each)

    def count_training(self, tokenizer: Tokenizer) -> TrainingCounts:
        """How often each token is asked for."""
        return TrainingCounts.of_tokens(asked_tokens(self.train, tokenizer.vocab_size))

    def baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Those of token frequencies."""
        assert run.recipe is not None
        store = self.valid if split == "valid" else store_of(run.recipe, split, run.tokenizer)
        asked = asked_tokens(store, counts.vocab_size)
        report = store.report
        return unigram_baselines(counts.token_counts(), asked, report.words, report.characters)

    def _measured(self, model: nn.Module, store: TokenStore, each: Each) -> dict[str, float]:
        assert isinstance(model, CausalLM)
        of = perplexity(model, store, self.width, self.rows, each)
        bits = of.bits_per_character
        return {"loss": of.loss, "ppl": of.per_token, "word_ppl": of.per_word, "bits_per_char": bits}


def _check_predicts(store: TokenStore, split: str) -> None:
    """A text that is measured has a token with one after it."""
    if len(store) < 2:
        raise UserError(f"the {split} text is one token, and nothing that it could predict; give more of it")
