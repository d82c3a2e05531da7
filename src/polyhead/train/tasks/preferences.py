"""Preferences between answers: DPO and KTO, relative to the model that the training starts from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.core.option_types import PositiveFloat
from polyhead.core.registry import TASK
from polyhead.data.batching.length_bucketing import LengthBucketSampler, shard_rows
from polyhead.data.batching.token_windows import TokenWindows, make_dummy_windows
from polyhead.data.readers.preferences import Preferences, open_preferences, read_preference_texts
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.preference_store import PreferenceStore, open_preference_store
from polyhead.evaluate.baselines import Baseline, Baselines, TrainingCounts
from polyhead.generation.prompt_template import get_prompt_template
from polyhead.models import CausalLM, Ensemble
from polyhead.nn.device import PlacedBatch, place_batch
from polyhead.nn.loss import Loss
from polyhead.nn.preference_loss import (
    KL_BLOCK,
    block_divergences,
    dpo_losses,
    kto_losses,
    sequence_log_probs,
)
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.distributed.process_group import MapFn
from polyhead.train.loggers import Reporter
from polyhead.train.tasks.base import report_split, warn_learned_texts
from polyhead.train.tasks.chat import ChatTask
from polyhead.train.tasks.common import causal_lm_features, check_causal_lm_decoding, collect_split_facts


class PreferenceBatch(NamedTuple):
    """Answers with their prompts, and the log-probabilities of the reference model."""

    answers: TokenWindows  # N rows; of pairs, the chosen answers before the rejected ones
    reference: Tensor  # (N,)
    is_chosen: Tensor  # (N,) bool
    mismatched_answers: TokenWindows | None  # each prompt with the answer of another
    mismatched_reference: Tensor | None  # (N,)


class PreferenceObjective(ABC):
    """What is learned of log-ratios to the reference model; a reward is beta times a log-ratio."""

    name: ClassVar[str]
    n_answers: ClassVar[int]  # of an item of the data: 2 for pairs
    needs_kl: ClassVar[bool]  # whether the loss reads z0

    def __init__(self, beta: float) -> None:
        self.beta = beta

    @abstractmethod
    def losses(self, ratios: Tensor, batch: PreferenceBatch, kl: Tensor | None, smoothing: float) -> Tensor:
        """The loss of each item, of log-ratios and z0 of its answers."""

    @abstractmethod
    def count_correct(self, ratios: Tensor, batch: PreferenceBatch, kl: Tensor) -> int:
        """The number of items whose rewards are on the right side."""

    @abstractmethod
    def compute_baselines(self, is_chosen: IdArray) -> Baselines:
        """Loss and accuracy of the reference model, whose rewards are 0."""

    @abstractmethod
    def shard(self, rows: IdArray, n: int) -> list[IdArray]:
        """Distribute the items of a batch over n processes; no shard is empty."""


class Dpo(PreferenceObjective):
    """-log σ(β (log-ratio of the chosen answer - that of the rejected one))."""

    name, n_answers, needs_kl = "dpo", 2, False

    def losses(self, ratios: Tensor, batch: PreferenceBatch, kl: Tensor | None, smoothing: float) -> Tensor:
        chosen, rejected = ratios.chunk(2) if len(ratios) else (ratios, ratios)
        return dpo_losses(chosen, rejected, self.beta, smoothing)

    def count_correct(self, ratios: Tensor, batch: PreferenceBatch, kl: Tensor) -> int:
        chosen, rejected = ratios.chunk(2)
        return int((chosen > rejected).sum())

    def compute_baselines(self, is_chosen: IdArray) -> Baselines:
        return {
            "loss": Baseline(math.log(2), "reference model"), "accuracy": Baseline(0.5, "reference model")
        }  # fmt: skip

    def shard(self, rows: IdArray, n: int) -> list[IdArray]:
        return shard_rows(rows, n)


class Kto(PreferenceObjective):
    """λ (1 - σ(±β (log-ratio - z0)))."""

    name, n_answers, needs_kl = "kto", 1, True

    def __init__(self, beta: float, weights: tuple[float, float]) -> None:
        super().__init__(beta)
        self.weights = weights

    def losses(self, ratios: Tensor, batch: PreferenceBatch, kl: Tensor | None, smoothing: float) -> Tensor:
        assert kl is not None
        return kto_losses(ratios, batch.is_chosen, kl, self.beta, self.weights)

    def count_correct(self, ratios: Tensor, batch: PreferenceBatch, kl: Tensor) -> int:
        return int(((ratios > kl) == batch.is_chosen).sum())

    def compute_baselines(self, is_chosen: IdArray) -> Baselines:
        share = float(is_chosen.mean())
        loss = (share * self.weights[0] + (1 - share) * self.weights[1]) / 2
        accuracy = Baseline(max(share, 1 - share), "majority class", "true" if share >= 0.5 else "false")
        return {"loss": Baseline(loss, "reference model"), "accuracy": accuracy}

    def shard(self, rows: IdArray, n: int) -> list[IdArray]:
        # blocks stay whole, so that z0 does not depend on the number of processes
        blocks = np.split(rows, range(KL_BLOCK, len(rows), KL_BLOCK))
        return [np.concatenate(blocks[rank::n]) for rank in range(min(n, len(blocks)))]


class PreferenceTask:
    """An opened task of preferences; its reference log-probabilities are set before it is trained.

    They are 0 before, with which a loss costs as much.
    """

    kind = "decoder"
    labels: tuple[str, ...] = ()
    usage = 'polyhead generate . "Once upon a time"'

    def __init__(
        self,
        stores: Mapping[str, PreferenceStore],
        objective: PreferenceObjective,
        pad_id: int,
        max_len: int,
        config: TrainConfig,
    ) -> None:
        self.stores, self.objective, self.pad_id, self.config = stores, objective, pad_id, config
        self.train, self.valid, self.max_len = stores["train"], stores["valid"], max_len
        self.title = f"A language model of preferences ({objective.name.upper()})"
        self.identity = {split: stores[split].directory.name for split in ("train", "valid")}
        self.reference = {
            split: dict.fromkeys(("answers", "mismatched"), torch.zeros(len(store)))
            for split, store in stores.items()
        }
        self.shard = objective.shard
        self.epoch_batches = self.make_sampler(self.train).epoch_batches
        self.largest_batch = self.make_sampler(self.train).largest_batch
        for split in stores:
            self.plan_eval(split)  # raises if an item is larger than a batch

    @property
    def remarks(self) -> dict[str, str]:
        """What the measures of ``evaluate`` mean, for tables."""
        return {
            "loss": tr("mean of the preferences"),
            "accuracy": tr("fraction of preferences with the higher reward on the right side"),
            "margin": tr("mean reward of chosen answers less that of rejected ones"),
            "chosen_reward": tr("beta times the log-ratio to the reference model"),
            "rejected_reward": tr("beta times the log-ratio to the reference model"),
            "kl": tr("estimated divergence from the reference model, in nats per answer"),
        }

    def collate(self, rows: IdArray) -> PreferenceBatch:
        """Batch of some training items."""
        return self.make_batch("train", rows, self.objective.needs_kl)

    def make_batch(self, split: str, items: IdArray, has_mismatched: bool) -> PreferenceBatch:
        """Batch of some items of a split."""
        store, reference, rows = self.stores[split], self.reference[split], self._find_rows(items)
        return PreferenceBatch(
            store.collate(rows, self.pad_id),
            reference["answers"][rows],
            torch.from_numpy(store.is_chosen[rows]),
            store.collate_mismatched(rows, self.pad_id, self.max_len) if has_mismatched else None,
            reference["mismatched"][rows] if has_mismatched else None,
        )

    def _find_rows(self, items: IdArray) -> IdArray:
        """Rows of the answers of items; of pairs, those of the chosen answers come first."""
        n = self.objective.n_answers
        return (np.asarray(items)[None] * n + np.arange(n)[:, None]).ravel()

    def dummy_batch(self) -> PreferenceBatch:
        """A batch without answers."""
        mismatched = (make_dummy_windows(), torch.zeros(0)) if self.objective.needs_kl else (None, None)
        no_answers = torch.zeros(0, dtype=torch.bool)
        return PreferenceBatch(make_dummy_windows(), torch.zeros(0), no_answers, *mismatched)

    def count_labels(self, batch: PreferenceBatch) -> int:
        """Number of items of a batch."""
        return len(batch.reference) // self.objective.n_answers

    def loss(self, model: nn.Module, batch: PreferenceBatch) -> Loss:
        """The loss of the objective, as a sum over items."""
        batch, host = place_batch(model, batch)
        ratios, kl = self._compute_ratios(model, batch, host)
        smoothing = self.config.label_smoothing or 0.0
        losses = self.objective.losses(ratios, batch, kl, smoothing)
        return Loss(losses.sum(), losses.sum().detach(), len(losses))

    def _compute_ratios(
        self, model: nn.Module, batch: PreferenceBatch, host: PreferenceBatch
    ) -> tuple[Tensor, Tensor | None]:
        """Log-ratios of the answers (N,), and their z0 (N,) if the batch has mismatched answers."""
        kl = None
        if batch.mismatched_answers is not None and host.mismatched_answers is not None:
            assert batch.mismatched_reference is not None
            with torch.no_grad():
                log_probs = answer_log_probs(
                    model, PlacedBatch(batch.mismatched_answers, host.mismatched_answers)
                )
            kl = block_divergences(log_probs[: len(batch.reference)] - batch.mismatched_reference)
        log_probs = answer_log_probs(model, PlacedBatch(batch.answers, host.answers))
        return log_probs[: len(batch.reference)] - batch.reference, kl

    @torch.no_grad()
    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Loss without smoothing, reward accuracy, margin and rewards, and divergence, of a split."""

        def measure_batch(items: IdArray) -> list[float]:
            return self._measure_batch(model, self.make_batch(split, items, True))

        parts = map_fn(measure_batch, self.plan_eval(split))
        sums = [sum(column) for column in zip(*parts, strict=True)]
        loss, n, n_correct, chosen, n_chosen, rejected, n_rejected, kl, n_answers = sums
        rewards = chosen / max(n_chosen, 1), rejected / max(n_rejected, 1)
        return {
            "loss": loss / n, "accuracy": n_correct / n, "margin": rewards[0] - rewards[1],
            "chosen_reward": rewards[0], "rejected_reward": rewards[1], "kl": kl / n_answers,
        }  # fmt: skip

    def _measure_batch(self, model: nn.Module, batch: PreferenceBatch) -> list[float]:
        """Sums of loss, items, right items, rewards of chosen and of rejected answers, z0, and counts."""
        batch, host = place_batch(model, batch)
        ratios, kl = self._compute_ratios(model, batch, host)
        assert kl is not None
        losses, rewards = self.objective.losses(ratios, batch, kl, 0.0), self.objective.beta * ratios
        sums = [float(losses.sum()), len(losses), self.objective.count_correct(ratios, batch, kl)]
        for mask in (batch.is_chosen, ~batch.is_chosen):
            sums += [float(rewards[mask].sum()), int(mask.sum())]
        return [*sums, float(kl.sum()), len(kl)]

    @torch.no_grad()
    def measure_reference(self, model: nn.Module, split: str, map_fn: MapFn = map) -> dict[str, Tensor]:
        """Log-probabilities of the answers of a split, also mismatched where they are read: (N,) each."""
        store = self.stores[split]
        has_mismatched = self.objective.needs_kl or split != "train"
        plan = self.plan_eval(split)

        def measure_batch(items: IdArray) -> list[list[float]]:
            batch, host = place_batch(model, self.make_batch(split, items, has_mismatched))
            rows = [PlacedBatch(batch.answers, host.answers)]
            if batch.mismatched_answers is not None and host.mismatched_answers is not None:
                rows.append(PlacedBatch(batch.mismatched_answers, host.mismatched_answers))
            return [answer_log_probs(model, row).tolist() for row in rows]

        log_probs = {name: torch.zeros(len(store)) for name in ("answers", "mismatched")}
        for items, values in zip(plan, map_fn(measure_batch, plan), strict=True):
            rows = self._find_rows(items)
            for name, value in zip(log_probs, values, strict=False):
                log_probs[name][rows] = torch.tensor(value)
        return log_probs

    def set_reference(self, split: str, log_probs: Mapping[str, Tensor]) -> None:
        """Set the log-probabilities of ``measure_reference``."""
        self.reference[split] = dict(log_probs)

    def collect_facts(self, run: Run, map_fn: MapFn = map) -> dict[str, str]:
        """Accuracy, margin and divergence of the validation text, and all metrics of the test text."""
        names = {"accuracy": "accuracy", "margin": "margin", "kl": "kl"}
        return collect_split_facts(self.evaluate, self.stores, run, map_fn, names)

    def count_training_tokens(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Counts of the answers."""
        n_chosen = int(self.train.is_chosen.sum())
        return TrainingCounts(labels={"true": n_chosen, "false": len(self.train) - n_chosen})

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Loss and accuracy of the reference model."""
        return self.objective.compute_baselines(self.stores[split].is_chosen)

    def make_sampler(self, store: PreferenceStore) -> LengthBucketSampler:
        """Batch sampler over the items of a store; the answers of an item count together."""
        n = self.objective.n_answers
        lengths = np.minimum(np.maximum(store.lengths, store.mismatched_lengths), self.max_len)
        lengths = n * lengths.reshape(-1, n).max(1)
        return LengthBucketSampler(lengths, lengths, self.config.max_tokens, self.config.seed)

    def plan_eval(self, split: str) -> list[IdArray]:
        """The items of every batch for evaluation."""
        return self.make_sampler(self.stores[split]).epoch_batches()


def answer_log_probs(model: nn.Module, batch: TokenWindows | PlacedBatch[TokenWindows]) -> Tensor:
    """log p of the labels of each row of a batch: (B,)."""
    assert isinstance(model, CausalLM | Ensemble)
    placed, host = place_batch(model, batch)
    features = causal_lm_features(model, placed, host)
    return sequence_log_probs(features, model.head, placed.labels, host.labels)


def open_split_preferences(recipe: Recipe, split: str) -> Preferences:
    """Open the files of a split; validation may be a share of the training preferences."""
    return open_preferences(*recipe.data.select_split(split), needs_pairs=recipe.task.name == "dpo")


def check_preferences(recipe: Recipe) -> None:
    """Raise a UserError if a file is missing or has no preferences, or there is no model to start from."""
    if recipe.init_from is None:
        raise UserError(
            f"task {recipe.task.name!r} starts from a trained language model, which is its reference: set "
            "init_from=RUN"
        )
    for split in recipe.data.splits:
        open_split_preferences(recipe, split)


def open_preference_task(
    objective: PreferenceObjective, recipe: Recipe, tokenizer: Tokenizer, report: Reporter
) -> PreferenceTask:
    """Open the task; the token stores are built, or loaded from the cache."""
    check_causal_lm_decoding(recipe, tokenizer)
    chat = recipe.generation.chat or ChatTask.chat
    template = get_prompt_template(recipe, tokenizer)
    prefix_ids = template.prefix_ids if template.always_add_prefix else []
    max_len = min(recipe.data.max_len, recipe.model.max_len)
    stores = {
        split: open_preference_store(
            open_split_preferences(recipe, split), chat, prefix_ids, tokenizer, recipe.token_cache_dir,
            max_len=max_len,
        )
        for split in recipe.data.splits
    }  # fmt: skip
    for split, store in stores.items():
        report_split(report, split, store.report.describe(), unknown=store.count_unknown(tokenizer))
        if split != "train":
            warn_learned_texts(split, store.hash_texts(), None, stores["train"].hash_texts(), report)
    if recipe.model.dropout:
        report.info(
            tr(
                "warning: with model.dropout={dropout:g} the log-ratios of a step are noisy; set "
                "model.dropout=0",
                dropout=recipe.model.dropout,
            )
        )
    task = PreferenceTask(stores, objective, tokenizer.pad_id, max_len, recipe.train)
    report.info(task.make_sampler(task.train).describe())
    return task


@TASK.register("dpo")
class DpoTask:
    """Of two answers to a prompt one is preferred: direct preference optimization.

    A line of JSONL is {"prompt": ..., "chosen": ..., "rejected": ...}: texts, of which the answers continue
    the prompt, or lists of messages for the chat template ``generation.chat``. The reference model is that
    of ``init_from``: its log-probabilities are computed once, before the training, and kept in the run.
    ``train.label_smoothing`` is the share of preferences that are wrong (cDPO). Set ``model.dropout=0``.

    Equation: -log σ(β (log π(y_w|x)/π_ref(y_w|x) - log π(y_l|x)/π_ref(y_l|x)))
    Paper: Rafailov et al., 2023, eq. 7
    When: a language model answers already, and pairs of answers show which ones are better
    Recipe: task: {name: dpo, beta: 0.1}
    Options:
      beta: strength of the tie to the reference model
    """

    kind = "decoder"
    label_smoothing = 0.0
    metrics = ("loss", "accuracy")
    check = staticmethod(check_preferences)

    def __init__(self, *, beta: PositiveFloat = 0.1) -> None: ...

    @staticmethod
    def iter_texts(recipe: Recipe) -> Iterator[str]:
        """The prompts and answers of the training text."""
        return read_preference_texts(open_split_preferences(recipe, "train"))

    @staticmethod
    def open(recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> PreferenceTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        beta = TASK.check(recipe.task).options.get("beta", 0.1)
        return open_preference_task(Dpo(beta), recipe, tokenizer, report)


@TASK.register("kto")
class KtoTask:
    """Each answer is desirable or not: Kahneman-Tversky optimization.

    A line of JSONL is {"prompt": ..., "completion": ..., "label": true}, as texts or messages; the two
    answers of a line of task ``dpo`` count as one of each. z0 is the mean log-ratio of 8 answers to prompts
    of others. The reference model is as in task ``dpo``. Set ``model.dropout=0``.

    Equation: λ (1 - σ(±β (log π(y|x)/π_ref(y|x) - z0)))
    Paper: Ethayarajh et al., 2024, eq. 8
    When: answers are known to be good or bad, but not in pairs
    Recipe: task: {name: kto, beta: 0.1}
    Options:
      beta: strength of the tie to the reference model
      desirable_weight: weight of desirable answers; the sums of both kinds should be within 3:4 and 4:3
      undesirable_weight: weight of undesirable answers
    """

    kind = "decoder"
    label_smoothing = 0.0
    metrics = ("loss", "accuracy")
    iter_texts = staticmethod(DpoTask.iter_texts)

    def __init__(
        self,
        *,
        beta: PositiveFloat = 0.1,
        desirable_weight: PositiveFloat = 1.0,
        undesirable_weight: PositiveFloat = 1.0,
    ) -> None: ...

    @staticmethod
    def check(recipe: Recipe) -> None:
        """As for task ``dpo``; label smoothing is a UserError."""
        if recipe.train.label_smoothing:
            raise UserError(
                "train.label_smoothing has no effect on single answers: remove it from task 'kto'"
            )
        check_preferences(recipe)

    @staticmethod
    def open(recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> PreferenceTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        options = recipe.task.options
        weights = options.get("desirable_weight", 1.0), options.get("undesirable_weight", 1.0)
        return open_preference_task(Kto(options.get("beta", 0.1), weights), recipe, tokenizer, report)
