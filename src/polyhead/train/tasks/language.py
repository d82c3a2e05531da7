"""Learning to say what comes next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from torch import nn

from polyhead.data.rows import Ints, Rows, collate_rows, plan_rows
from polyhead.data.text import Text, open_text, texts
from polyhead.data.token_store import TokenStore
from polyhead.errors import UserError
from polyhead.models import CausalLM
from polyhead.nn.loss import Loss, cross_entropy
from polyhead.recipe import DataConfig, Recipe, TrainConfig
from polyhead.registry import TASK
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.reporting import Reporter


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
    title = "A language model"
    use = 'polyhead generate . "Once upon a time"'

    def __init__(self, train: TokenStore, valid: TokenStore, data: DataConfig, config: TrainConfig) -> None:
        self.train, self.valid, self.config = train, valid, config
        self.width, self.documents = data.max_len, len(train.begins) > 1
        self.rows = config.max_tokens // self.width
        if not self.rows:
            raise UserError(
                f"train.max_tokens is {config.max_tokens}, less than a row of data.max_len={self.width} tokens"
            )
        self.identity = {"train": train.directory.name, "valid": valid.directory.name}
        self.plan(0)  # a text that is too short is told now

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Every file is there and is text, or a UserError says what is wrong."""
        for split in ("train", "valid", *(["test"] if recipe.data.test else [])):
            text_of(recipe, split)

    @classmethod
    def texts(cls, recipe: Recipe) -> Iterator[str]:
        """What a tokenizer learns from."""
        return texts(text_of(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> LanguageModel:
        """With its token stores made or found."""
        if recipe.data.max_len > recipe.model.max_len:
            raise UserError(
                f"data.max_len is {recipe.data.max_len}, more than model.max_len={recipe.model.max_len}: rows do not fit"
            )
        cache = recipe.data.cache or recipe.out / "data"
        stores = [TokenStore.open_or_build(text_of(recipe, split), tokenizer, cache) for split in ("train", "valid")]
        for split, store in zip(("train", "valid"), stores, strict=True):
            report.say(f"{split}: {store.report}, {len(store):,} tokens")
        return cls(stores[0], stores[1], recipe.data, recipe.train)

    def plan(self, epoch: int) -> Sequence[Ints]:
        """The first tokens of the rows of every batch of an epoch, in order."""
        return plan_rows(len(self.train), self.width, self.rows, seed=self.config.seed, epoch=epoch)

    def hardest(self) -> Ints:
        """All full batches are alike."""
        return self.plan(0)[0]

    def batch(self, starts: Ints) -> Rows:
        """Rows of the training text."""
        return collate_rows(self.train, starts, self.width, documents=self.documents)

    def count(self, batch: Rows) -> int:
        """Labels that count."""
        return int((batch.labels >= 0).sum())

    def loss(self, model: nn.Module, batch: Rows, smoothing: float | None = None) -> Loss:
        """Cross-entropy as sums."""
        assert isinstance(model, CausalLM)
        smoothing = self.config.label_smoothing if smoothing is None else smoothing
        return cross_entropy(model.features(batch.tokens, batch.pos), model.head.weight, batch.labels, smoothing)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Loss a token, and perplexity a token and a word, of the validation text, each token predicted once."""
        return measured(model, self.valid, self, self.width, self.rows)

    def facts(self, run: Run) -> dict[str, str]:
        """Perplexity of the test text, if there is one."""
        recipe = run.recipe
        assert recipe is not None
        if not recipe.data.test:
            return {}
        cache = recipe.data.cache or recipe.out / "data"
        store = TokenStore.open_or_build(text_of(recipe, "test"), run.tokenizer, cache)
        return {f"test {k}": f"{v:.4f}" for k, v in measured(run.model, store, self, self.width, self.rows).items()}


def measured(model: nn.Module, store: TokenStore, task: LanguageModel, width: int, rows: int) -> dict[str, float]:
    """Rows side by side over a whole text: mean nats a token, perplexity a token, and a word.

    A word is what stands between blanks, and each line's end is one more, so that models with other tokenizers
    can be compared (as on WikiText; Merity et al., 2016).
    """
    nll, count = 0.0, 0
    starts = np.arange(0, len(store) - 1, width)
    for i in range(0, len(starts), rows):
        batch = collate_rows(store, starts[i : i + rows], width, documents=len(store.begins) > 1)
        loss = task.loss(model, batch, smoothing=0.0)
        nll, count = nll + float(loss.nll), count + loss.count
    return {
        "loss": nll / count,
        "ppl": math.exp(min(nll / count, 700.0)),
        "word_ppl": math.exp(min(nll / store.report.words, 700.0)),
    }


def text_of(recipe: Recipe, split: str) -> Text:
    """The files of a split as the recipe says they are read; validation may be the end of the training text."""
    data = recipe.data
    held = data.valid_share if not data.valid else 0.0
    if split == "valid" and not data.valid:
        if not held:
            raise UserError("data.valid: give files to measure progress on, or data.valid_share=0.1 of the training text")
        return open_text(data.paths("train"), data.documents, (1.0 - held, 1.0))
    return open_text(data.paths(split), data.documents, (0.0, 1.0 - held) if split == "train" else (0.0, 1.0))
