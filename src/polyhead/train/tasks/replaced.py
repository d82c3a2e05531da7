"""Learning to tell which tokens another model has put in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.analysis.recovered import perplexity_of, recovered
from polyhead.data.masking import drawn
from polyhead.data.packing import Pack
from polyhead.data.token_store import TokenStore
from polyhead.evaluate.baselines import Baseline, Baselines
from polyhead.evaluate.training_counts import TrainingCounts
from polyhead.models import Detector
from polyhead.nn.loss import IGNORED, Loss, cross_entropy
from polyhead.nn.place import beside
from polyhead.ranges import AtLeast0
from polyhead.recipe import Recipe
from polyhead.registry import TASK, Choice
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.ranks import Each
from polyhead.train.reporting import Reporter
from polyhead.train.tasks.masked import MEASURED, Masked, MaskedLanguage, check_hidden, features
from polyhead.train.tasks.plain_text import store_of, test_facts

DRAWN = 4  # as the numbers of masked.py


class Hidden(NamedTuple):
    """A batch: rows as the generator reads them, and the chance by which it draws a token."""

    given: Masked
    chance: Tensor  # (B, T) from 0 to 1


class Told(NamedTuple):
    """Sums over a text: what the generator says of hidden tokens, what the encoder says of all."""

    nll: float  # -log p of the tokens asked for
    asked: int
    missed: float  # -log p of a token being its own or not
    tokens: int
    found: int  # of the replaced ones
    suspected: int
    replaced: int

    def measures(self, weight: float) -> dict[str, float]:
        """Loss in nats as it is learned, the generator's perplexity, F1 of the replaced tokens."""
        nll = self.nll / max(self.asked, 1)
        loss = nll + weight * self.missed / max(self.tokens, 1)
        f1 = 2 * self.found / max(self.suspected + self.replaced, 1)
        return {"loss": loss, "ppl": perplexity_of(nll), "f1": f1}


@TASK.register("replaced-tokens")
class ReplacedTokens:
    """A small generator fills in hidden tokens, and the encoder tells which tokens of the text are not its own.

    So every token teaches the encoder, not the hidden ones alone. Rows, masks and the generator's loss are those of
    ``masked-lm``; the generator has ``model.generator`` layers, the encoder's width and its embedding. Tokens that it
    says right are the text's own. Both learn together, and no gradient goes through what was drawn.

    Equation: Σ_{t asked} -log p_G(x_t | hidden) / |asked|  +  weight · Σ_t -log p_D(x̂_t = x_t or not | x̂) / |x|
    Paper: Clark et al., 2020, sec. 2; with fewer layers of the same width: He et al., 2021
    When: as masked-lm, where an encoder shall learn most from each pass over a text
    Recipe: {task: replaced-tokens, model: {generator: 2}}
    Options:
      mask: share of the tokens that are hidden from the generator, in every row
      whole_word: hide all tokens of a word or none
      weight: how much the encoder's loss counts beside the generator's
    """

    kind, generator = "encoder", True
    label_smoothing = 0.0
    metrics = ("loss", "f1")
    labels = ()
    title = "An encoder that tells replaced tokens"
    use = 'polyhead embed . "The cat sat down."'

    def __init__(
        self, text: MaskedLanguage, *, mask: float = 0.15, whole_word: bool = False, weight: AtLeast0 = 50.0
    ) -> None:
        self.text, self.identity, self.weight, self.mask = text, text.identity, weight, mask

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Every file is there and is text, or a UserError says what is wrong."""
        check_hidden(recipe)

    @classmethod
    def texts(cls, recipe: Recipe) -> Iterator[str]:
        """What a tokenizer learns from."""
        return MaskedLanguage.texts(recipe)

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> ReplacedTokens:
        """With its token stores made or found."""
        options = recipe.task.options
        hiding = Choice("masked-lm", **{name: options[name] for name in ("mask", "whole_word")})
        text = MaskedLanguage.open(recipe.model_copy(update={"task": hiding}), tokenizer, report)
        return cls(text, **options)

    def plan(self, epoch: int) -> Sequence[Pack]:
        return self.text.plan(epoch)

    def hardest(self) -> Pack:
        return self.text.hardest()

    def deal(self, packed: Pack, n: int) -> list[Pack]:
        return self.text.deal(packed, n)

    def batch(self, packed: Pack) -> Hidden:
        """Rows of the training text, with what chance draws by (seed, epoch, row)."""
        return _hidden(self.text.batch(packed), packed, [DRAWN, self.text.config.seed, packed.epoch])

    def count(self, batch: Hidden) -> int:
        """Tokens asked for."""
        return self.text.count(batch.given)

    def loss(self, model: nn.Module, batch: Hidden) -> Loss:
        """Both as sums over the tokens asked for, each of which stands for 1 / mask tokens to the encoder; nll is the generator's."""
        assert isinstance(model, Detector)
        batch = beside(model, batch)
        said, asked = features(model.generator, batch.given), batch.given.labels != IGNORED
        smoothing = self.text.config.smoothing
        own = cross_entropy(said, model.generator.head, batch.given.labels[asked], smoothing)
        told, replaced = _told(model, batch.given, model.drawn(said, batch.chance[asked]))
        missed = F.binary_cross_entropy_with_logits(told, replaced, reduction="sum")
        return own._replace(total=own.total + self.weight * self.mask * missed)

    def evaluate(self, model: nn.Module, each: Each = map) -> dict[str, float]:
        """Loss, the generator's perplexity and how well replaced tokens are found in the validation text."""
        return self._measured(model, self.text.valid, each)

    def facts(self, run: Run, each: Each = map) -> dict[str, str]:
        """The same of the validation and, where there is one, of the test text."""
        found = self._measured(run.model, self.text.valid, each)["f1"]
        return {"valid F1 of replaced tokens": f"{found:.4f}"} | test_facts(
            run, store_of, self._measured, each
        )

    def count_training(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Those of the tokens that the generator is asked for."""
        return self.text.count_training(tokenizer)

    def baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """The generator's perplexity of token frequencies, and F1 where every token is taken for a replaced one."""
        assert run.recipe is not None
        store = self.text.valid if split == "valid" else store_of(run.recipe, split, run.tokenizer)
        told = self._sums(run.model, store, map)
        f1 = 2 * told.replaced / max(told.tokens + told.replaced, 1)
        unigram = self.text.baselines(counts, run, split)
        return {"ppl": unigram["ppl"], "f1": Baseline(f1, "every token")} if unigram else {}

    @torch.no_grad()
    def judge(self, model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
        """The first validation rows: tokens (B, T) with replaced ones in, -1 at padding; found ones; replaced ones."""
        assert isinstance(model, Detector)
        packed = self.text.whole(self.text.valid)[0]
        given, chance = beside(
            model, _hidden(self.text.asked(self.text.valid, packed), packed, [DRAWN, MEASURED])
        )
        asked = given.labels != IGNORED
        drawn = model.drawn(features(model.generator, given), chance[asked])
        told, replaced = _told(model, given, drawn)
        there = torch.ones_like(asked) if given.pos is None else given.pos >= 0
        own = torch.where(asked, given.labels, given.tokens)
        read = own.masked_scatter(asked, drawn).masked_fill(~there, -1)
        found, truth = torch.zeros_like(there), torch.zeros_like(there)
        found[there], truth[there] = told > 0, replaced > 0
        return read, found, truth

    def _measured(self, model: nn.Module, store: TokenStore, each: Each) -> dict[str, float]:
        return self._sums(model, store, each).measures(self.weight)

    @torch.no_grad()
    def _sums(self, model: nn.Module, store: TokenStore, each: Each) -> Told:
        """What is drawn is the same for every model that says the same."""
        assert isinstance(model, Detector)

        def read(packed: Pack) -> Told:
            rows = _hidden(self.text.asked(store, packed), packed, [DRAWN, MEASURED])
            given, chance = beside(model, rows)
            said, asked = features(model.generator, given), given.labels != IGNORED
            own = recovered(said, model.generator.head, given.labels[asked])
            told, replaced = _told(model, given, model.drawn(said, chance[asked]))
            missed = F.binary_cross_entropy_with_logits(told, replaced, reduction="sum")
            guess, there = told > 0, replaced > 0
            counts = (int(some.sum()) for some in (guess & there, guess, there))
            return Told(own.nll, own.asked, float(missed), len(told), *counts)

        sums = map(sum, zip(*each(read, self.text.whole(store)), strict=True))
        return Told(*sums)


def _hidden(given: Masked, packed: Pack, key: list[int]) -> Hidden:
    """With what chance draws for each row."""
    chance = [drawn([*key, row]).random(given.tokens.size(1), np.float32) for row in packed.rows.tolist()]
    return Hidden(given, torch.from_numpy(np.stack(chance)))


def _told(model: Detector, batch: Masked, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """What the encoder says of every token there, with those ``drawn`` in: logits (N,), and 1 where one is not its own."""
    asked = batch.labels != IGNORED
    own = torch.where(asked, batch.labels, batch.tokens)
    given = own.masked_scatter(asked, drawn)
    told, replaced = model(given, batch.pos), (given != own).to(torch.float32)
    if batch.pos is None:
        return told.flatten().float(), replaced.flatten()
    there = batch.pos >= 0
    return told[there].float(), replaced[there]
