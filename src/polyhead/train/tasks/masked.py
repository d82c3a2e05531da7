"""Learning to say which tokens were hidden."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.analysis.recovered import Recovered, recovered
from polyhead.data.arrays import Ints
from polyhead.data.batches import describe_batches
from polyhead.data.masking import drawn, mask_row
from polyhead.data.packing import FRAME, Pack, collate_packs, cut, documents, plan_packs
from polyhead.data.text import texts
from polyhead.data.token_store import TokenStore
from polyhead.data_sections import DataConfig
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baselines, count_tokens
from polyhead.evaluate.training_counts import TrainingCounts
from polyhead.models import Ensemble, MaskedLM
from polyhead.nn.loss import IGNORED, Loss, cross_entropy
from polyhead.nn.place import beside
from polyhead.recipe import Recipe, TrainConfig
from polyhead.registry import TASK
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer
from polyhead.text.words import words_of
from polyhead.train.ranks import Each
from polyhead.train.reporting import Reporter
from polyhead.train.tasks.base import Scores
from polyhead.train.tasks.plain_text import (
    accuracy_facts,
    check_text,
    label_baselines,
    open_stores,
    rows_of,
    store_of,
    text_of,
)

PLAN, MASKS, MEASURED = 1, 2, 3  # what is drawn, first in the key of a generator


class Masked(NamedTuple):
    """A batch: rows of which some tokens are hidden."""

    tokens: Tensor  # (B, T) int64: as they are read
    # (B, T) int64: from 0 in each piece, -1 at padding; None if every row is one whole piece
    pos: Tensor | None
    labels: Tensor  # (B, T) int64: the tokens asked for, -100 elsewhere


@TASK.register("masked-lm")
class MaskedLanguage:
    """Some tokens of a text are asked for, and most of those hidden; the model reads both sides of each.

    Of the tokens asked for 80 % become the mask, 10 % another token and 10 % stay. Documents stand between ``<s>`` and
    ``</s>``, several in a row of ``data.max_len`` where they fit, and none sees another; only longer ones are cut,
    elsewhere in every epoch. Masks are new in every epoch, those of the validation text always the same.

    Equation: -Σ_{t asked} log p(x_t | x with its asked tokens hidden)
    Paper: Devlin et al., 2018, sec. 3.1; Liu et al., 2019, sec. 4.1
    When: an encoder shall know a language before it is taught classes or gives vectors
    Recipe: task: {name: masked-lm, whole_word: true}
    Options:
      mask: share of the tokens that are asked for, in every row
      whole_word: ask for all tokens of a word or none
    """

    kind = "encoder"
    label_smoothing = 0.0
    metrics = ("loss", "accuracy")
    labels = ()
    title = "A masked language model"
    use = 'polyhead fill-mask . "The <mask> sat down."'

    def __init__(
        self,
        train: TokenStore,
        valid: TokenStore,
        tokenizer: Tokenizer,
        data: DataConfig,
        config: TrainConfig,
        *,
        mask: float = 0.15,
        whole_word: bool = False,
    ) -> None:
        self.train, self.valid, self.tokenizer, self.config, self.mask = train, valid, tokenizer, config, mask
        self.width, self.rows = data.max_len, rows_of(config, data.max_len)
        self.words = words_of(tokenizer) if whole_word else None
        self.special = np.zeros(tokenizer.vocab_size, dtype=bool)
        self.special[tokenizer.special_ids] = True
        self.mask_id = tokenizer.mask_id
        self.documents = documents(train, tokenizer.eos_id)
        self.identity = {"train": train.directory.name, "valid": valid.directory.name}
        if not self.plan(0):
            raise UserError(f"{train.report.where}: no token to learn from")

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Every file is there and is text, or a UserError says what is wrong."""
        if not recipe.model.head:
            raise UserError(
                "model.head=false scores no tokens, and task 'masked-lm' asks for them: leave it out"
            )
        check_hidden(recipe)

    @classmethod
    def texts(cls, recipe: Recipe) -> Iterator[str]:
        """What a tokenizer learns from."""
        return texts(text_of(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> MaskedLanguage:
        """With its token stores made or found."""
        stores = open_stores(recipe, tokenizer, report)
        train, valid = stores["train"], stores["valid"]
        task = cls(train, valid, tokenizer, recipe.data, recipe.train, **recipe.task.options)
        plan = task.plan(0)
        cells = sum(len(batch.rows) for batch in plan) * task.width
        used = sum(int((batch.pieces.lengths + FRAME).sum()) for batch in plan)
        report.say(describe_batches(len(plan), used / cells))
        return task

    def plan(self, epoch: int) -> Sequence[Pack]:
        """The batches of an epoch, in order."""
        bits = drawn([PLAN, self.config.seed, epoch])
        return plan_packs(cut(self.documents, self.width - FRAME, bits), self.width, self.rows, epoch, bits)

    def hardest(self) -> Pack:
        """All full batches are alike."""
        return self.plan(0)[0]

    def deal(self, packed: Pack, n: int) -> list[Pack]:
        """The rows of a batch in n parts, or fewer, for as many processes."""
        return packed.deal(n)

    def batch(self, packed: Pack) -> Masked:
        """Rows of the training text, the masks drawn by (seed, epoch, row)."""
        return self._masked(self.train, packed, [MASKS, self.config.seed, packed.epoch])

    def count(self, batch: Masked) -> int:
        """Tokens asked for."""
        return int((batch.labels != IGNORED).sum())

    def loss(self, model: nn.Module, batch: Masked) -> Loss:
        """Cross-entropy as sums, of the tokens asked for; no other goes through the head."""
        assert isinstance(model, MaskedLM)
        batch = beside(model, batch)
        asked = batch.labels[batch.labels != IGNORED]
        return cross_entropy(features(model, batch), model.head, asked, self.config.smoothing)

    def scores(self, model: nn.Module, batch: Masked) -> Scores:
        """Of the tokens asked for."""
        assert isinstance(model, MaskedLM)
        batch = beside(model, batch)
        asked, hidden = batch.labels != IGNORED, model.encoder(batch.tokens, batch.pos)
        there = hidden.flatten(0, 1) if batch.pos is None else hidden[batch.pos >= 0]
        return Scores(model.head(model.transformed(hidden[asked])), batch.labels[asked], there)

    def evaluate(self, model: nn.Module, each: Each = map) -> dict[str, float]:
        """Loss, perplexity and accuracy of the tokens asked for in the validation text."""
        return self._measured(model, self.valid, each)

    def facts(self, run: Run, each: Each = map) -> dict[str, str]:
        """The same of the validation and, where there is one, of the test text."""
        return accuracy_facts(run, self.valid, self._measured, each)

    def count_training(self, tokenizer: Tokenizer) -> TrainingCounts:
        """How often each token occurs that may be asked for."""
        counts = count_tokens([self.train.ids], tokenizer.vocab_size)
        counts[self.special] = 0
        return TrainingCounts.of_tokens(counts)

    def baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Those of token frequencies, of the tokens asked for."""
        assert run.recipe is not None
        store = self.valid if split == "valid" else store_of(run.recipe, split, run.tokenizer)
        return label_baselines(counts, (batch.labels for _, batch in self.measured(store)))

    def _masked(self, store: TokenStore, packed: Pack, key: list[int]) -> Masked:
        tokens, pos = collate_packs(store, packed, self.tokenizer)
        labels = np.empty_like(tokens)
        for i, row in enumerate(packed.rows.tolist()):
            bits = drawn([*key, row])
            tokens[i], labels[i] = mask_row(
                tokens[i], self.special, self.mask_id, self.mask, self.words, bits
            )
        whole = bool((pos == np.arange(pos.shape[1])).all())
        return Masked(
            torch.from_numpy(tokens), None if whole else torch.from_numpy(pos), torch.from_numpy(labels)
        )

    def measured(self, store: TokenStore) -> Iterator[tuple[Ints, Masked]]:
        """A text to be measured by: numbers of rows, and these, with masks that are the same for every seed, so that models compare."""
        for packed in self.whole(store):
            yield packed.rows, self.asked(store, packed)

    def asked(self, store: TokenStore, packed: Pack) -> Masked:
        """Such rows."""
        return self._masked(store, packed, [MEASURED, 0])

    def whole(self, store: TokenStore) -> list[Pack]:
        """The batches of a text to be measured by, each document from its beginning on."""
        pieces = cut(documents(store, self.tokenizer.eos_id), self.width - FRAME, None)
        return plan_packs(pieces, self.width, self.rows, 0, drawn([MEASURED]))

    @torch.no_grad()
    def _measured(self, model: nn.Module, store: TokenStore, each: Each) -> dict[str, float]:
        assert isinstance(model, MaskedLM | Ensemble)

        def read(packed: Pack) -> Recovered:
            batch = beside(model, self.asked(store, packed))
            asked = batch.labels[batch.labels != IGNORED]
            return recovered(features(model, batch), model.head, asked)

        return Recovered.of(each(read, self.whole(store))).measures()


def check_hidden(recipe: Recipe) -> None:
    """A share of the tokens can be hidden, and every file is there and is text."""
    share = recipe.task.options["mask"]
    if not 0 < share <= 1:
        raise UserError(
            f"mask of task {recipe.task.name!r} is a share above 0 and at most 1, not {share}; BERT has 0.15"
        )
    check_text(recipe, least=FRAME + 1)


def features(model: MaskedLM | Ensemble, batch: Masked) -> Tensor:
    """What the head reads of the tokens asked for: (N, C)."""
    return model.transformed(model.encoder(batch.tokens, batch.pos)[batch.labels != IGNORED])
