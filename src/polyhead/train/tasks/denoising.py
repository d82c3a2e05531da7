"""Learning to write a damaged text whole again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from polyhead.analysis.recovered import Recovered, recovered
from polyhead.data.arrays import Ints
from polyhead.data.batches import ByLength
from polyhead.data.collate import Batch, collate_pairs
from polyhead.data.denoising import (
    even_spans,
    infill,
    permute_sentences,
    poisson_spans,
    span_corrupt,
    span_counts,
)
from polyhead.data.masking import drawn
from polyhead.data.packing import Pieces, cut, documents
from polyhead.data.text import texts
from polyhead.data.token_store import TokenStore
from polyhead.data_sections import DataConfig
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baselines, count_tokens
from polyhead.evaluate.training_counts import TrainingCounts
from polyhead.models.ensemble import Ensemble
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.loss import Loss
from polyhead.nn.place import beside
from polyhead.recipe import Recipe, TrainConfig
from polyhead.registry import TASK
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer
from polyhead.text.words import words_of
from polyhead.train.ranks import Each
from polyhead.train.reporting import Reporter
from polyhead.train.tasks import writing
from polyhead.train.tasks.base import Scores
from polyhead.train.tasks.plain_text import (
    accuracy_facts,
    check_text,
    label_baselines,
    open_stores,
    store_of,
    text_of,
)

PLAN, NOISE, MEASURED = 4, 5, 6  # what is drawn, first in the key of a generator
SHARES = {"infilling": 0.3, "spans": 0.15}  # Lewis et al., 2020, sec. 2.2; Raffel et al., 2020, sec. 3.3.4

ENOUGH = 1_000_000  # tokens that are counted of the training text


class Texts(NamedTuple):
    """Some texts of an epoch."""

    epoch: int
    rows: Ints  # (B,) their numbers in the epoch
    pieces: Pieces

    def deal(self, n: int) -> list[Texts]:
        """Dealt out to n processes in turn; no part is empty."""
        some = range(min(n, len(self.rows)))
        return [
            Texts(self.epoch, self.rows[i::n], Pieces(*(part[i::n] for part in self.pieces))) for i in some
        ]


@TASK.register("denoising")
class Denoising:
    """A text is damaged, and the decoder writes what it was: all of it, or the parts that are gone.

    "infilling" (BART): spans of a length drawn from Poisson(``span``) become one mask each, empty ones too, and the
    whole text is written. "spans" (T5): every span becomes a sentinel of its own, and the spans are written, each after
    its sentinel; the tokenizer needs ``tokenizer.sentinels``. Documents longer than ``data.max_len`` are cut.

    Equation: -Σ_t log p(y_t | y_1 ... y_{t-1}, damaged x)
    Paper: Lewis et al., 2020; Raffel et al., 2020
    When: an encoder-decoder shall know a language before it is taught to translate or to sum up
    Recipe: task: {name: denoising, noise: spans}
    Options:
      noise: what is done to the text, infilling or spans
      share: of the tokens that are hidden; 0.3 for infilling and 0.15 for spans if not given
      span: mean tokens of a span
      permute: whether sentences come in random order as well; infilling only
    """

    kind = "encoder-decoder"
    label_smoothing = 0.0
    metrics = ("loss", "accuracy")
    labels = ()
    title = "A denoising encoder-decoder"
    use = "polyhead train recipe.yaml start=."

    def __init__(
        self,
        train: TokenStore,
        valid: TokenStore,
        tokenizer: Tokenizer,
        data: DataConfig,
        config: TrainConfig,
        *,
        noise: Literal["infilling", "spans"] = "infilling",
        share: float | None = None,
        span: float = 3.0,
        permute: bool = False,
    ) -> None:
        self.train, self.valid, self.tokenizer, self.config = train, valid, tokenizer, config
        self.noise, self.share, self.span = noise, SHARES[noise] if share is None else share, span
        self.room = data.max_len - tokenizer.sides.most
        self.ends = words_of(tokenizer).ends_sentence if permute else None
        self.sentinels = np.array(tokenizer.sentinel_ids, dtype=np.int64)
        if noise == "spans":
            _check_spans(self.room, self.share, span, len(self.sentinels))
        self.documents = documents(train, tokenizer.eos_id)
        self.identity = {"train": train.directory.name, "valid": valid.directory.name}
        if not self.plan(0):
            raise UserError(f"{train.report.where}: no token to learn from")

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Every file is there and is text, or a UserError says what is wrong."""
        options = recipe.task.options
        share = SHARES[options["noise"]] if options["share"] is None else options["share"]
        if not 0 < share <= 1:
            raise UserError(f"share of task 'denoising' is above 0 and at most 1, not {share}")
        if not 0 < options["span"] <= recipe.data.max_len:
            raise UserError(
                f"span of task 'denoising' is a number of tokens, above 0 and within data.max_len, not {options['span']}"
            )
        if options["noise"] == "spans":
            if options["permute"]:
                raise UserError(
                    "permute of task 'denoising' goes with noise=infilling, where the whole text is written"
                )
            if recipe.start is None:
                _check_spans(recipe.data.max_len - 1, share, options["span"], recipe.tokenizer.sentinels)
        check_text(recipe, least=3)

    @classmethod
    def texts(cls, recipe: Recipe) -> Iterator[str]:
        """What a tokenizer learns from."""
        return texts(text_of(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> Denoising:
        """With its token stores made or found."""
        writing.check_decoding(recipe, tokenizer)
        stores = open_stores(recipe, tokenizer, report)
        train, valid = stores["train"], stores["valid"]
        task = cls(train, valid, tokenizer, recipe.data, recipe.train, **recipe.task.options)
        for split in recipe.data.splits[1:]:
            task._whole(stores[split])  # a text that is larger than a batch is told now
        report.say(task._by_length(task._pieces(0), recipe.train.seed).described())
        return task

    def plan(self, epoch: int) -> Sequence[Texts]:
        """The batches of an epoch, in order."""
        return self._planned(self._pieces(epoch), epoch, self.config.seed)

    def hardest(self) -> Texts:
        """The batch that needs the most memory."""
        pieces = self._pieces(0)
        rows = self._by_length(pieces, self.config.seed).hardest()
        return Texts(0, rows, pieces.of(rows))

    def deal(self, chosen: Texts, n: int) -> list[Texts]:
        """The rows of a batch in n parts, or fewer, for as many processes."""
        return chosen.deal(n)

    def batch(self, chosen: Texts) -> Batch:
        """Some texts of the training text, the damage drawn by (seed, epoch, text)."""
        return self._damaged(self.train, chosen, [NOISE, self.config.seed, chosen.epoch])

    def count(self, batch: Batch) -> int:
        """Labels that count."""
        return batch.n_tokens

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Cross-entropy as sums."""
        return writing.loss(model, batch, self.config.smoothing)

    def scores(self, model: nn.Module, batch: Batch) -> Scores:
        """Of every token to be written."""
        return writing.scores(model, batch)

    def evaluate(self, model: nn.Module, each: Each = map) -> dict[str, float]:
        """Loss, perplexity and accuracy of what is to be written, of the validation text; what stands before is given."""
        return self._measured(model, self.valid, each)

    def facts(self, run: Run, each: Each = map) -> dict[str, str]:
        """The same of the validation and, where there is one, of the test text."""
        return accuracy_facts(run, self.valid, self._measured, each)

    def count_training(self, tokenizer: Tokenizer) -> TrainingCounts:
        """How often each token is to be written, in the first batches of an epoch."""
        counts: Ints = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        for chosen in self.plan(0):
            counts += count_tokens([self.batch(chosen).labels.numpy().ravel()], len(counts))
            if counts.sum() >= ENOUGH:
                break
        return TrainingCounts.of_tokens(counts)

    def baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Those of token frequencies, of the tokens to be written."""
        assert run.recipe is not None
        store = self.valid if split == "valid" else store_of(run.recipe, split, run.tokenizer)
        return label_baselines(counts, (batch.labels for _, batch in self.measured(store)))

    def _pieces(self, epoch: int) -> Pieces:
        return cut(self.documents, self.room, drawn([PLAN, self.config.seed, epoch]))

    def _lengths(self, pieces: Pieces) -> tuple[Ints, Ints]:
        """What each text takes in a batch on either side, at most."""
        of_source, of_target = self.tokenizer.sides.added
        if self.noise == "infilling":  # there are never more masks than tokens hidden
            return pieces.lengths + of_source, pieces.lengths + of_target
        known = {n: span_counts(n, self.share, self.span) for n in np.unique(pieces.lengths).tolist()}
        counts = np.array([known[n] for n in pieces.lengths.tolist()], dtype=np.int64).reshape(-1, 2)
        covered, spans = counts[:, 0], counts[:, 1]
        return pieces.lengths - covered + spans + of_source, covered + spans + 1 + of_target

    def _by_length(self, pieces: Pieces, seed: int) -> ByLength:
        return ByLength(*self._lengths(pieces), self.config.max_tokens, seed)

    def _planned(self, pieces: Pieces, epoch: int, seed: int) -> list[Texts]:
        plan = self._by_length(pieces, seed).plan(epoch)
        return [Texts(epoch, rows, pieces.of(rows)) for rows in plan]

    def _damaged(self, store: TokenStore, chosen: Texts, key: list[int]) -> Batch:
        pairs = []
        for row, start, length in zip(
            chosen.rows.tolist(), *(part.tolist() for part in chosen.pieces), strict=True
        ):
            pairs.append(self._pair(store.ids[start : start + length].astype(np.int64), drawn([*key, row])))
        sources, targets = ([side.tolist() for side in sides] for sides in zip(*pairs, strict=True))
        return collate_pairs(sources, targets, self.tokenizer)

    def _pair(self, ids: Ints, bits: np.random.Generator) -> tuple[Ints, Ints]:
        """What the encoder reads of a text, and what the decoder writes."""
        if self.noise == "spans":
            return span_corrupt(ids, even_spans(len(ids), self.share, self.span, bits), self.sentinels)
        read = ids if self.ends is None else permute_sentences(ids, self.ends[ids], bits)
        return infill(read, poisson_spans(len(ids), self.share, self.span, bits), self.tokenizer.mask_id), ids

    def measured(self, store: TokenStore) -> Iterator[tuple[Ints, Batch]]:
        """A text to be measured by: numbers of texts, and these, with damage that is the same for every seed, so that models compare."""
        for chosen in self._whole(store):
            yield chosen.rows, self._damaged(store, chosen, [MEASURED, 0])

    def _whole(self, store: TokenStore) -> list[Texts]:
        """The batches of a text to be measured by, each document from its beginning on."""
        return self._planned(cut(documents(store, self.tokenizer.eos_id), self.room, None), 0, 0)

    @torch.no_grad()
    def _measured(self, model: nn.Module, store: TokenStore, each: Each) -> dict[str, float]:
        assert isinstance(model, Seq2Seq | Ensemble)

        def read(chosen: Texts) -> Recovered:
            batch = beside(model, self._damaged(store, chosen, [MEASURED, 0]))
            return recovered(writing.features(model, batch), model.head, batch.labels)

        return Recovered.of(each(read, self._whole(store))).measures()


def _check_spans(room: int, share: float, span: float, sentinels: int) -> None:
    """Rows of ``room`` tokens need no more sentinels than there are, and no more room to be written than to be read."""
    covered, spans = span_counts(room, share, span)
    if spans + 1 > sentinels:
        raise UserError(
            f"noise=spans hides {spans} spans of {room} tokens and needs {spans + 1} sentinels; the tokenizer has {sentinels}: "
            f"give tokenizer.sentinels={max(100, spans + 1)}"
        )
    if covered + spans + 1 > room:
        raise UserError(
            f"noise=spans writes {covered + spans + 1} tokens for {room} that it reads, more than data.max_len holds: "
            "give a smaller share or a longer span"
        )
