"""Learning to translate from pairs of sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import numpy as np
from torch import nn

from polyhead.analysis.metrics import bleu, chrf, evaluated
from polyhead.analysis.recovered import perplexity_of
from polyhead.core.i18n import tr, translate_message
from polyhead.data.arrays import Ints
from polyhead.data.batches import ByLength, deal
from polyhead.data.collate import Batch, collate, collate_split
from polyhead.data.corpus import Corpus, open_corpus, read_pairs, texts
from polyhead.data.store import PairStore
from polyhead.data_sections import DataConfig
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baselines, count_tokens, translation_baselines, unigram_baselines
from polyhead.evaluate.training_counts import TrainingCounts
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.loss import Loss
from polyhead.ranges import Share
from polyhead.recipe import Recipe, TrainConfig
from polyhead.registry import TASK
from polyhead.run import Run
from polyhead.text.halves import Halves
from polyhead.text.sides import between
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.ranks import Each
from polyhead.train.reporting import Reporter
from polyhead.train.tasks import writing
from polyhead.train.tasks.base import Scores, say_split, warn_of_few
from polyhead.train.tasks.swapped import check_sides

Measure = Callable[[Seq2Seq, Each], dict[str, float]]
COLUMNS = {side: DataConfig.model_fields[side].default for side in ("source", "target")}
SAMPLE = 500  # validation pairs that are translated at an evaluation, at most
TOGETHER = 2048  # source tokens, about, of what one process translates while others translate the rest


@TASK.register("translation")
class Translation:
    """Pairs of a source and a target: the decoder reads the target shifted by one and predicts all of it at once.

    Equation: -Σ_t log p(y_t | y_1 ... y_{t-1}, x)
    Paper: Sutskever et al., 2014; Vaswani et al., 2017; token_split: Provilkov et al., 2020; Sims et al., 2025
    When: every text has one that it should become; the default
    Recipe: task: {name: translation, token_split: 0.1}
    Options:
      token_split: share of the tokens that are written as two shorter ones while it learns, others each time, and that
        ``train.max_tokens`` counts as one; for small data
    """

    kind = "encoder-decoder"
    label_smoothing = 0.1  # Vaswani et al., 2017, sec. 5.4
    metrics = ("loss", "bleu", "chrf")
    labels: tuple[str, ...] = ()
    use = "polyhead translate . input.txt"

    def __init__(
        self,
        train: PairStore,
        valid: PairStore,
        tokenizer: Tokenizer,
        config: TrainConfig,
        measures: Sequence[Measure] = (),
        title: str = "A translator",
        *,
        token_split: Share = 0.0,
    ) -> None:
        self.train, self.valid, self.tokenizer = train, valid, tokenizer
        self.config, self.measures = config, measures
        self.halves = _halves(tokenizer, token_split)
        self.title, self.identity = title, {"train": train.directory.name, "valid": valid.directory.name}
        # made now, so that a pair that fits no batch is told at the start
        self.valid_batches = self.by_length(valid).plan()

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Every file is there and holds pairs, or a UserError says what is wrong."""
        corpora = {split: corpus_of(recipe, split) for split in recipe.data.splits}
        found = list(corpora.values())
        if found[0].wanted != COLUMNS and all(corpus.format == "parallel" for corpus in found):
            raise UserError(
                f"{found[0].where} are a side each, without columns or keys: leave out data.source and data.target"
            )
        check_sides(recipe.data, corpora)

    @classmethod
    def texts(cls, recipe: Recipe) -> Iterator[str]:
        """Both sides of every training pair."""
        return texts(corpus_of(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> Translation:
        """With its token stores made or found."""
        between(tokenizer)  # whose languages are told now, not when it translates
        writing.check_decoding(recipe, tokenizer)
        max_len = min(recipe.data.max_len, recipe.model.max_len) + 1 - tokenizer.sides.most
        train, valid = (
            PairStore.open_or_build(corpus_of(recipe, split), tokenizer, recipe.stores, max_len=max_len)
            for split in ("train", "valid")
        )
        say_split(report, "train", train.report.describe())
        say_split(report, "valid", valid.report.describe())
        for store in (train, valid):
            warn_of_few(store.report, recipe, report)
        for warning in check_sides(recipe.data, {s: corpus_of(recipe, s) for s in recipe.data.splits}):
            report.say(translate_message(warning))
        if recipe.data.test:
            say_split(report, "test", read_pairs(corpus_of(recipe, "test"))[2].describe())
        if copied := [split for split in recipe.data.splits if corpus_of(recipe, split).copies]:
            report.say(
                tr(
                    "{splits}: source and target are the same text, to be copied",
                    splits=", ".join(map(tr, copied)),
                )
            )
        named = filter(None, (recipe.data.source_lang, recipe.data.target_lang))
        title = f"A translator, {' to '.join(named) or 'source to target'}"
        measures = _measures(recipe, tokenizer)
        task = cls(train, valid, tokenizer, recipe.train, measures, title, **recipe.task.options)
        report.say(task.by_length(train).described())
        return task

    def plan(self, epoch: int) -> Sequence[np.ndarray]:
        """The rows of every batch of an epoch, in order."""
        return self.by_length(self.train).plan(epoch)

    def hardest(self) -> np.ndarray:
        """The rows of the batch that needs the most memory; no epoch has a larger one."""
        return self.by_length(self.train).hardest()

    def deal(self, rows: np.ndarray, n: int) -> list[np.ndarray]:
        """The rows of a batch in n parts, or fewer, for as many processes."""
        return deal(rows, n)

    def batch(self, rows: np.ndarray) -> Batch:
        """Padded tensors of some training pairs, some of their tokens as two."""
        if self.halves:
            return collate_split(self.train, rows, self.tokenizer, self.halves)
        return collate(self.train, rows, self.tokenizer)

    def count(self, batch: Batch) -> int:
        """Labels that count."""
        return batch.n_tokens

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Label-smoothed cross-entropy as sums."""
        return writing.loss(model, batch, self.config.smoothing)

    def scores(self, model: nn.Module, batch: Batch) -> Scores:
        """Of every token of the targets."""
        return writing.scores(model, batch)

    def evaluate(self, model: nn.Module, each: Each = map) -> dict[str, float]:
        """Loss without smoothing and perplexity of the validation pairs, and whatever else is measured."""
        assert isinstance(model, Seq2Seq)

        def read(rows: np.ndarray) -> tuple[float, int]:
            loss = writing.loss(model, collate(self.valid, rows, self.tokenizer), 0.0)
            return float(loss.nll), loss.count

        nll, count = map(sum, zip(*each(read, self.valid_batches), strict=True))
        measured = {"loss": nll / count, "ppl": perplexity_of(nll / count)}
        for measure in self.measures:
            measured |= measure(model, each)
        return measured

    def by_length(self, store: PairStore) -> ByLength:
        """Some pairs in batches."""
        return ByLength(store.source_lengths, store.target_lengths, self.config.max_tokens, self.config.seed)

    def count_training(self, tokenizer: Tokenizer) -> TrainingCounts:
        """The tokens of the targets, and the most frequent target."""
        (target,) = tokenizer.decode([self.train.target(most_frequent(self.train)).tolist()])
        return TrainingCounts.of_tokens(count_targets(self.train, tokenizer), target)

    def baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """BLEU and chrF of a copied source or the most frequent target; of the validation text also token frequencies."""
        assert run.recipe is not None
        sources, references, _ = read_pairs(corpus_of(run.recipe, split))
        found = dict(translation_baselines(sources, references, run.recipe.data.target_lang, counts.target))
        if split == "valid":
            asked = count_targets(self.valid, run.tokenizer)
            unigram = unigram_baselines(counts.token_counts(), asked)
            found |= {name: unigram[name] for name in ("loss", "ppl")}
        return found

    def facts(self, run: Run, each: Each = map) -> dict[str, str]:
        """BLEU and chrF on the validation text and, where there is one, the test text, decoded as the recipe says."""
        recipe, facts = run.recipe, {}
        assert recipe is not None
        for split in ("valid", "test") if recipe.data.test else ("valid",):
            sources, references, _ = read_pairs(corpus_of(recipe, split))
            outputs = translated(run, sources, each)
            for score in evaluated(outputs, references, recipe.data.target_lang).scores:
                facts[f"{split} {score.name}"] = f"{score.value:.2f} ({score.signature})"
        return facts


def count_targets(store: PairStore, tokenizer: Tokenizer) -> Ints:
    """How often each token is to be said, the ends of targets included: (V,)."""
    around = np.array(tokenizer.sides.said([]), dtype=np.int64)
    vocab_size = tokenizer.vocab_size
    return count_tokens([store.target_ids], vocab_size) + len(store) * count_tokens([around], vocab_size)


def most_frequent(store: PairStore) -> int:
    """The first row with the most frequent target."""
    hashes = (hash(store.target(row).tobytes()) for row in range(len(store)))
    _, first, counts = np.unique(
        np.fromiter(hashes, np.int64, len(store)), return_index=True, return_counts=True
    )
    return int(first[counts == counts.max()].min())


def corpus_of(recipe: Recipe, split: str) -> Corpus:
    """The files of a split as the recipe says they are read; validation may be a share of the training text."""
    data = recipe.data
    files, share, held = data.part(split)
    return open_corpus(
        files, format=data.format, source=data.source, target=data.target, share=share, held=held
    )


def _halves(tokenizer: Tokenizer, share: float) -> tuple[Halves, Halves] | None:
    """How tokens of sources and targets are written as two; None where none are."""
    if not share:
        return None
    source = Halves(tokenizer, share)
    return source, source if tokenizer.target is tokenizer else Halves(tokenizer.target, share)


def _measures(recipe: Recipe, tokenizer: Tokenizer) -> list[Measure]:
    """BLEU and chrF of free-running greedy output on the first validation pairs, if the recipe wants them."""
    if not recipe.train.eval_bleu and recipe.train.metric == "loss":
        return []
    sources, references, _ = read_pairs(corpus_of(recipe, "valid"), SAMPLE)
    greedy = recipe.generation.model_copy(update={"beam_size": 1, "n_best": 1})

    def measure(model: Seq2Seq, each: Each) -> dict[str, float]:
        outputs = translated(Run(model, tokenizer, greedy), sources, each)
        lang = recipe.data.target_lang
        return {"bleu": bleu(outputs, references, lang).value, "chrf": chrf(outputs, references).value}

    return [measure]


def translated(run: Run, sources: Sequence[str], each: Each) -> list[str]:
    """The translation of each source. Those of about one length are a work for ``each``, the same ones whoever does it."""
    lengths = np.array([len(ids) + 1 for ids in run.tokenizer.encode(sources)])
    order = np.argsort(-lengths, kind="stable")
    before = np.cumsum(lengths[order]) - lengths[order]
    parts = np.split(order, np.flatnonzero(np.diff(before // TOGETHER)) + 1)

    def work(rows: np.ndarray) -> list[str]:
        return run.translate([sources[row] for row in rows], truncate=True)

    outputs = dict(zip(np.concatenate(parts).tolist(), chain.from_iterable(each(work, parts)), strict=True))
    return [outputs[row] for row in range(len(sources))]
