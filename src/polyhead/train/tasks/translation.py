"""Translation from parallel text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise

import numpy as np
from torch import nn

from polyhead.config.corpora import CorpusConfig
from polyhead.config.data_config import DataConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr, translate_message
from polyhead.core.option_types import Fraction, NonNegativeFloat
from polyhead.core.registry import TASK
from polyhead.data.augment import PairAugmenter
from polyhead.data.batching.collate import PairBatch, collate, make_dummy_pairs, shard_pair_tokens
from polyhead.data.batching.length_bucketing import EpochRows, LengthBucketSampler
from polyhead.data.batching.mixture import MixedLengthSampler, Mixture
from polyhead.data.readers.parallel_corpus import (
    CorpusReport,
    ParallelFiles,
    has_references,
    merge_corpora,
    open_corpus,
    open_references,
    read_corpus_texts,
    read_pairs,
    read_references,
)
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.pair_store import PairStore, hash_pairs
from polyhead.evaluate.baselines import (
    Baselines,
    TrainingCounts,
    count_tokens,
    translation_baselines,
    unigram_baselines,
)
from polyhead.evaluate.metrics import (
    MAIN_TRANSLATION_METRICS,
    N_RESAMPLES,
    describe_tokenizer_mismatch,
    evaluate_translations,
    score_translations,
)
from polyhead.evaluate.perplexity import loss_to_perplexity
from polyhead.introspect.compute_attention import record_attention
from polyhead.introspect.word_alignment import select_guided
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.device import place_batch
from polyhead.nn.loss import Loss
from polyhead.run.run import Run
from polyhead.tokenizers.languages import with_languages
from polyhead.tokenizers.token_split import TokenSplitter
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.base import report_split, warn_if_few_used, warn_learned_texts
from polyhead.train.tasks.common import (
    check_seq2seq_decoding,
    count_pair_labels,
    seq2seq_logits,
    seq2seq_loss,
)
from polyhead.train.tasks.corpora import list_shares, make_mixture, make_text_rules, name_losses
from polyhead.train.tasks.guided_alignment import ALIGNMENT_WEIGHT, LinkStore, check_guided, guided_loss
from polyhead.train.tasks.store_task import StoreTask
from polyhead.train.tasks.swapped_sides import check_corpora_sides

MeasureFn = Callable[[Seq2Seq, MapFn], dict[str, float]]
DEFAULT_COLUMNS = {side: DataConfig.model_fields[side].default for side in ("source", "target")}
EVAL_PAIRS = 500  # maximum validation pairs that are translated at an evaluation
MAP_CHUNK_TOKENS = 2048  # approximate source tokens of one item for ``map_fn``


@TASK.register("translation")
class TranslationTask(StoreTask[PairStore]):
    """Translate a source into a target: the decoder reads the target shifted by one, all positions at once.

    Equation: -Σ_t log p(y_t | y_1 ... y_{t-1}, x)
    Paper: Sutskever et al., 2014; Vaswani et al., 2017; token_split: Provilkov et al., 2020;
      Sims et al., 2025; alignment_weight: Chen et al., 2016; Garg et al., 2019
    When: for pairs of an input and an output text; the default
    Recipe: task: {name: translation, token_split: 0.1}
    Options:
      token_split: share of the tokens that are split into two shorter ones in training, drawn anew each time;
        ``train.max_tokens`` counts them as one; for small data
      alignment_weight: weight of the loss of guided alignment, with data.alignments: the cross-entropy
        between the links of a word and the first head of the last cross-attention but one
    """

    kind = "encoder-decoder"
    augmenter: PairAugmenter | None = None
    label_smoothing = 0.1  # Vaswani et al., 2017, sec. 5.4
    metrics = ("loss", *(metric.name for metric in MAIN_TRANSLATION_METRICS))
    usage = "polyhead translate . input.txt"
    shard = staticmethod(EpochRows.shard)
    dummy_batch = staticmethod(make_dummy_pairs)
    shard_sequence = staticmethod(shard_pair_tokens)
    count_labels = staticmethod(count_pair_labels)
    compute_logits = staticmethod(seq2seq_logits)

    def __init__(
        self,
        train: PairStore,
        valid: PairStore,
        tokenizer: Tokenizer,
        config: TrainConfig,
        measure_fns: Sequence[MeasureFn] = (),
        title: str = "A translation model",
        mixture: Mixture | None = None,
        links: LinkStore | None = None,
        *,
        token_split: Fraction = 0.0,
        alignment_weight: NonNegativeFloat = ALIGNMENT_WEIGHT,
    ) -> None:
        self.alignment_weight, self.links = alignment_weight, links
        super().__init__({"train": train, "valid": valid}, config)
        self.tokenizer, self.measure_fns = tokenizer, measure_fns
        self.token_splitters = _make_token_splitters(tokenizer, token_split)
        self.title = title
        self.identity |= {} if links is None else {"alignments": links.directory.name}
        self.shares = list_shares(mixture, np.diff(train.corpus_starts).tolist(), train.report)
        self.mixture = mixture
        self.plan_eval("valid")  # raises if a pair is larger than a batch

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raise a UserError if a file is missing or has no pairs, or sides are swapped."""
        corpora = {split: open_split_corpus(recipe, split) for split in recipe.data.splits}
        files = [part for corpus in corpora.values() for part in corpus.parts]
        if files[0].columns_by_role != DEFAULT_COLUMNS and all(
            corpus.format == "parallel" for corpus in files
        ):
            raise UserError(
                f"{files[0].source_label} are one side each, without columns or keys: remove "
                "data.source and data.target"
            )
        check_corpora_sides(recipe.data, corpora)
        check_guided(recipe, corpora["train"])

    @classmethod
    def iter_texts(cls, recipe: Recipe) -> Iterator[str]:
        """Both sides of every training pair, to train a tokenizer on."""
        return read_corpus_texts(open_split_corpus(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> TranslationTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        for tag in recipe.data.tags:  # raises if a pretrained vocabulary has none
            tokenizer.token_to_id(tag)
        if not recipe.data.language_tags:
            with_languages(tokenizer)  # raises if a language is missing
        check_seq2seq_decoding(recipe, tokenizer)
        max_len = min(recipe.data.max_len, recipe.model.max_len) + 1 - tokenizer.seq2seq_template.max_special
        train, valid = (
            PairStore.open_or_build(
                open_split_corpus(recipe, split), tokenizer, recipe.token_cache_dir, max_len=max_len
            )
            for split in ("train", "valid")
        )
        for split, store in (("train", train), ("valid", valid)):
            report_split(report, split, store.report.describe(), unknown=store.count_unknown(tokenizer))
        for store in (train, valid):
            warn_if_few_used(store.report, recipe, report)
        lines, training_texts = valid.line_numbers.tolist(), train.hash_texts()
        warn_learned_texts("valid", valid.hash_texts(), lines, training_texts, report)
        splits = {split: open_split_corpus(recipe, split) for split in recipe.data.splits}
        for warning in check_corpora_sides(recipe.data, splits):
            report.info(translate_message(warning))
        if recipe.data.test:
            counts, lines, hashes = [], list[int](), list[int]()
            for corpus in splits["test"].parts:
                counts.append(CorpusReport(corpus.source_label))
                pairs = list(corpus.iter_pairs(counts[-1]))
                lines += [pair.line for pair in pairs]
                hashes += hash_pairs(pairs, tokenizer, corpus.source_tags)
            report_split(report, "test", *(part.describe() for part in counts))
            warn_learned_texts("test", hashes, lines, training_texts, report)
        for split, corpus in splits.items():
            for other in corpus.references:  # raises before training if one has another number of lines
                report_split(report, split, read_pairs(other)[2].describe())
        if copy_splits := [split for split, corpus in splits.items() if corpus.copied_side]:
            report.info(
                tr(
                    "{splits}: source and target are the same text",
                    splits=", ".join(map(tr, copy_splits)),
                )
            )
        languages = filter(None, (recipe.data.source_lang, recipe.data.target_lang))
        title = f"A translation model, {' to '.join(languages) or 'source to target'}"
        if recipe.data.language_tags:
            title = f"A translation model to {', '.join(sorted(recipe.data.language_tags))}"
        for corpus, lang in zip(splits["valid"].parts, recipe.data.list_targets("valid"), strict=True):
            references = read_pairs(corpus, EVAL_PAIRS)[1]
            if warning := describe_tokenizer_mismatch(lang, references):
                report.info(warning)
        measure_fns = _make_measure_fns(recipe, tokenizer)
        mixture = make_mixture(recipe.data, recipe.train.seed)
        links = None
        if recipe.data.alignments is not None:
            (path,) = recipe.data.resolve_files(str(recipe.data.alignments))
            links = LinkStore.open_or_build(path, splits["train"], train, tokenizer)
        parts = measure_fns, title, mixture, links
        task = cls(train, valid, tokenizer, recipe.train, *parts, **recipe.task.options)
        if recipe.data.language_tags:
            task.usage += f" --target-lang {recipe.data.list_targets('train')[0]}"
        if recipe.data.augment:
            longest = min(max_len - 1, recipe.train.max_tokens - tokenizer.seq2seq_template.max_special)
            task.augmenter = PairAugmenter(recipe.data.augment, tokenizer, recipe.train.seed, longest)
        report.info(task._make_train_sampler(0).describe())
        return task

    def epoch_batches(self, epoch: int) -> list[EpochRows]:
        """The pairs of every batch of an epoch, in order."""
        sampler = self._make_train_sampler(epoch)
        starts = self.train.corpus_starts
        plan = MixedLengthSampler(sampler, self.mixture, starts) if self.mixture else sampler
        return [EpochRows(epoch, rows) for rows in plan.epoch_batches(epoch)]

    def largest_batch(self) -> EpochRows:
        """The batch that needs the most memory."""
        return EpochRows(0, self._make_train_sampler(0).largest_batch())

    def collate(self, batch: EpochRows) -> PairBatch:
        """Padded batch of some training pairs, with augmentation and token splitting."""
        augment = partial(self.augmenter, batch.epoch) if self.augmenter else None
        pairs = collate(self.train, batch.rows, self.tokenizer, self.token_splitters, augment)
        if self.links is None:
            return pairs
        template, shape = self.tokenizer.seq2seq_template, (*pairs.target.shape, pairs.source.size(1))
        starts = len(template.source_prefix), len(template.opening_ids)
        return pairs._replace(links=self.links.make_targets(batch.rows, shape, starts))

    def loss(self, model: nn.Module, batch: PairBatch) -> Loss:
        """Label-smoothed cross-entropy, as a sum over labels, and that of guided alignment."""
        smoothing = self.config.label_smoothing or 0.0
        links = place_batch(model, batch).batch.links
        if links is None:
            return seq2seq_loss(model, batch, smoothing)
        with record_attention(model, ".cross", detach=False) as weights_by_name:
            loss = seq2seq_loss(model, batch, smoothing)
        guided = guided_loss(select_guided(weights_by_name), links)
        return loss._replace(total=loss.total + self.alignment_weight * guided)

    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Loss without smoothing and perplexity of the pairs of a split; metrics of ``measure_fns``."""
        assert isinstance(model, Seq2Seq)

        def measure_batch(rows: np.ndarray) -> tuple[float, int]:
            loss = seq2seq_loss(model, collate(self.stores[split], rows, self.tokenizer), 0.0)
            return float(loss.nll), loss.count

        sums = [
            [*map(sum, zip(*map_fn(measure_batch, plan), strict=True))] for plan in self._plan_corpora(split)
        ]
        nll, count = map(sum, zip(*sums, strict=True))
        metrics = {"loss": nll / count, "ppl": loss_to_perplexity(nll / count)}
        metrics |= name_losses(self.stores[split].report, [nll / count for nll, count in sums])
        for measure in self.measure_fns:
            metrics |= measure(model, map_fn)
        return metrics

    def eval_batches(self, split: str) -> Iterator[tuple[IdArray, PairBatch]]:
        """Line numbers and batch of the pairs, of every batch for evaluation."""
        store, plan = self.stores[split], self.plan_eval(split)
        return ((store.line_numbers[rows], collate(store, rows, self.tokenizer)) for rows in plan)

    def plan_eval(self, split: str) -> list[IdArray]:
        """The pairs of every batch for evaluation."""
        return [rows for plan in self._plan_corpora(split) for rows in plan]

    def _plan_corpora(self, split: str) -> list[list[IdArray]]:
        """The batches of each corpus."""
        store = self.stores[split]
        sampler = self.make_sampler(store)
        return [sampler.batch_rows(np.arange(*bounds)) for bounds in pairwise(store.corpus_starts)]

    def make_sampler(self, store: PairStore) -> LengthBucketSampler:
        """Batch sampler over the pairs of a store."""
        return LengthBucketSampler(
            store.source_lengths, store.target_lengths, self.config.max_tokens, self.config.seed
        )

    def _make_train_sampler(self, epoch: int) -> LengthBucketSampler:
        """Batch sampler over the training pairs, by their lengths after augmentation."""
        sampler = self.make_sampler(self.train)
        if self.augmenter is None:
            return sampler
        sources, targets = self.augmenter.measure_rows(epoch, self.train)
        return sampler._replace(source_lengths=sources, target_lengths=targets)

    def count_training_tokens(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Counts of the target tokens, and the most frequent target."""
        (target,) = tokenizer.target_tokenizer.decode(
            [self.train.target_tokens(find_most_frequent_target(self.train)).tolist()]
        )
        return TrainingCounts.from_token_counts(count_target_tokens(self.train, tokenizer), target)

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Scores of a copied source or the most frequent target.

        For the validation split also loss and perplexity of token frequencies.
        """
        assert run.recipe is not None
        sources, references, _ = read_references(open_split_corpus(run.recipe, split))
        lang = run.recipe.data.common_target(split)
        baselines = dict(translation_baselines(sources, references, lang, counts.target))
        if split == "valid":
            label_counts = count_target_tokens(self.valid, run.tokenizer)
            unigram = unigram_baselines(counts.token_counts(), label_counts)
            baselines |= {name: unigram[name] for name in ("loss", "ppl")}
        return baselines

    def collect_facts(self, run: Run, map_fn: MapFn = map) -> dict[str, str]:
        """Scores on the validation text and, if there is one, the test text.

        Decoding uses the generation settings of the recipe.
        """
        recipe, facts = run.recipe, {}
        assert recipe is not None
        for split in ("valid", "test") if recipe.data.test else ("valid",):
            corpora = open_split_corpus(recipe, split).parts
            texts = [translate_corpus(run, corpus, map_fn) for corpus in corpora]
            results = [
                (f" of {corpus.source_label}", lang, *sides)
                for corpus, lang, sides in zip(corpora, recipe.data.list_targets(split), texts, strict=True)
            ]
            # no tokenizer of BLEU fits several target languages
            if len(results) == 1 or not recipe.data.language_tags:
                outputs, references = ([*chain.from_iterable(side)] for side in zip(*texts, strict=True))
                whole = "", recipe.data.common_target(split), outputs, references
                results = [whole, *results[len(results) == 1 :]]
            for name, lang, outputs, references in results:
                for score in evaluate_translations(outputs, references, lang, n_resamples=N_RESAMPLES).scores:
                    facts[f"{split} {score.name}{name}"] = (
                        f"{score.value:.2f} ±{score.margin:.2f} ({score.signature})"
                    )
        return facts


def count_target_tokens(store: PairStore, tokenizer: Tokenizer) -> IdArray:
    """Counts of the target tokens, with special tokens such as the end: (V,)."""
    special_labels = np.array(tokenizer.seq2seq_template.labels([]), dtype=np.int64)
    vocab_size = tokenizer.target_tokenizer.vocab_size
    return count_tokens([store.target_ids], vocab_size) + len(store) * count_tokens(
        [special_labels], vocab_size
    )


def find_most_frequent_target(store: PairStore) -> int:
    """Row number of the most frequent target (its first row)."""
    hashes = (hash(store.target_tokens(row).tobytes()) for row in range(len(store)))
    _, first_rows, counts = np.unique(
        np.fromiter(hashes, np.int64, len(store)), return_index=True, return_counts=True
    )
    return int(first_rows[counts == counts.max()].min())


def open_split_corpus(recipe: Recipe, split: str) -> ParallelFiles:
    """Open the files of a split as set in the recipe; validation may be a share of the training text.

    Validation and test text may have several references.
    """
    data = recipe.data

    def open_one(corpus: CorpusConfig | None = None) -> ParallelFiles:
        files, share, is_validation = data.select_split(split, corpus)
        if corpus is None and split != "train" and not share and has_references(files, data.format):
            return open_references(files)
        pairs = open_corpus(
            files,
            format=data.format,
            source=data.source,
            target=data.target,
            validation_fraction=share,
            is_validation=is_validation,
        )
        if corpus is None:
            return pairs
        rules = make_text_rules(corpus, split, corpus.source_lang, corpus.target_lang)
        return replace(pairs, name=corpus.name, rules=rules, source_tags=tuple(data.source_tags(corpus)))

    corpora = data.list_corpora(split)
    return merge_corpora([*map(open_one, corpora)]) if corpora else open_one()


def _make_token_splitters(tokenizer: Tokenizer, share: float) -> tuple[TokenSplitter, ...]:
    """Token splitters of sources and targets; none if ``share`` is 0."""
    if not share:
        return ()
    source = TokenSplitter(tokenizer, share)
    return source, source if tokenizer.target_tokenizer is tokenizer else TokenSplitter(
        tokenizer.target_tokenizer, share
    )


def _make_measure_fns(recipe: Recipe, tokenizer: Tokenizer) -> list[MeasureFn]:
    """A function for the scores of greedy decoding on the first validation pairs, if they are needed."""
    if not recipe.train.eval_bleu and recipe.train.best_metric == "loss":
        return []
    corpora = open_split_corpus(recipe, "valid").parts
    lang, limit = recipe.data.common_target("valid"), max(1, EVAL_PAIRS // len(corpora))
    greedy = recipe.generation.model_copy(update={"beam_size": 1, "n_best": 1})

    def measure_bleu(model: Seq2Seq, map_fn: MapFn) -> dict[str, float]:
        run = Run(model, tokenizer, greedy)
        texts = [translate_corpus(run, corpus, map_fn, limit) for corpus in corpora]
        outputs, references = ([*chain.from_iterable(side)] for side in zip(*texts, strict=True))
        return {
            metric.name: score_translations(metric, outputs, references, lang).value
            for metric in MAIN_TRANSLATION_METRICS
        }

    return [measure_bleu]


def translate_corpus(
    run: Run, corpus: ParallelFiles, map_fn: MapFn, limit: int | None = None
) -> tuple[list[str], list[list[str]]]:
    """(outputs, references of each) of the first pairs of a corpus."""
    sources, references, _ = read_references(corpus, limit)
    return translate_sources(with_source_tags(run, corpus.source_tags), sources, map_fn), references


def with_source_tags(run: Run, source_tags: Sequence[str]) -> Run:
    """A run whose sources start with special tokens."""
    if not source_tags:
        return run
    template = run.tokenizer.seq2seq_template
    tags = (run.tokenizer.token_to_id(tag) for tag in source_tags)
    tagged = template._replace(source_prefix=(*tags, *template.source_prefix))
    return Run(run.model, run.tokenizer.with_seq2seq_template(tagged), run.generation, run.recipe)


def translate_sources(run: Run, sources: Sequence[str], map_fn: MapFn) -> list[str]:
    """Translate each source. Chunks of similar length are the items of ``map_fn``.

    The chunks are the same for any number of ranks.
    """
    lengths = np.array([len(ids) + 1 for ids in run.tokenizer.encode(sources)])
    order = np.argsort(-lengths, kind="stable")
    n_tokens_before = np.cumsum(lengths[order]) - lengths[order]
    chunks = np.split(order, np.flatnonzero(np.diff(n_tokens_before // MAP_CHUNK_TOKENS)) + 1)

    def translate_rows(rows: np.ndarray) -> list[str]:
        return run.translate([sources[row] for row in rows], truncate=True)

    outputs = dict(
        zip(np.concatenate(chunks).tolist(), chain.from_iterable(map_fn(translate_rows, chunks)), strict=True)
    )
    return [outputs[row] for row in range(len(sources))]
