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
from polyhead.data.batching.length_bucketing import shard_rows
from polyhead.data.batching.token_windows import TokenWindows, make_dummy_windows
from polyhead.data.readers.preferences import Preferences, open_preferences, read_preference_texts
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.conversation_store import PreferenceStore, open_preference_store
from polyhead.evaluate.baselines import Baseline, Baselines, TrainingCounts
from polyhead.generation.prompt_template import get_prompt_template
from polyhead.models import CausalLM, Ensemble
from polyhead.nn.device import PlacedBatch, place_batch
from polyhead.nn.loss import (
    KL_BLOCK,
    Loss,
    block_divergences,
    dpo_losses,
    kto_losses,
    sequence_log_probs,
)
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.base import report_split, warn_learned_texts
from polyhead.train.tasks.chat import ChatTask
from polyhead.train.tasks.common import causal_lm_features, check_causal_lm_decoding
from polyhead.train.tasks.store_task import RowTask


class ScoredAnswers(NamedTuple):
    """Answers with their prompts, and their log-probabilities by the reference model."""

    windows: TokenWindows  # N rows
    log_probs: Tensor  # (N,)


class PreferenceBatch(NamedTuple):
    """Items of the data; of pairs, the chosen answers come before the rejected ones."""

    is_chosen: Tensor  # (N,) bool
    answers: tuple[ScoredAnswers, ...]  # the N answers; where z0 is read, also each prompt with another's


class PreferenceTask(RowTask[PreferenceStore]):
    """An opened task of preferences; its reference log-probabilities are set before it is trained.

    They are 0 before, with which a loss costs as much.
    """

    kind = "decoder"
    usage = 'polyhead generate . "Once upon a time"'
    valid_facts: Mapping[str, str] = {"accuracy": "accuracy", "margin": "margin", "kl": "kl"}

    def __init__(
        self,
        stores: Mapping[str, PreferenceStore],
        objective: PreferenceObjective,
        pad_id: int,
        config: TrainConfig,
    ) -> None:
        self.objective, self.pad_id, self.title = objective, pad_id, objective.title
        super().__init__(stores, config)
        # of the answers of a split and, where z0 is read, of the mismatched ones: (1 or 2, N)
        self.reference = {
            split: torch.zeros(2 if objective.needs_kl or split != "train" else 1, len(store))
            for split, store in stores.items()
        }
        self.shard = objective.shard

    def make_batch(self, split: str, rows: IdArray) -> PreferenceBatch:
        """Batch of some items of a split."""
        store, rows = self.stores[split], self._find_rows(rows)
        collates = (store.collate, store.collate_mismatched)
        answers = [
            ScoredAnswers(collate(rows, self.pad_id), log_probs[rows])
            for collate, log_probs in zip(collates, self.reference[split], strict=False)
        ]
        return PreferenceBatch(torch.from_numpy(store.is_chosen[rows]), tuple(answers))

    def _find_rows(self, items: IdArray) -> IdArray:
        """Rows of the answers of items; of pairs, those of the chosen answers come first."""
        n = self.objective.n_answers
        return (np.asarray(items)[None] * n + np.arange(n)[:, None]).ravel()

    def dummy_batch(self) -> PreferenceBatch:
        """A batch without answers."""
        no_answers = ScoredAnswers(make_dummy_windows(), torch.zeros(0))
        return PreferenceBatch(torch.zeros(0, dtype=torch.bool), (no_answers,) * len(self.reference["train"]))

    def count_labels(self, batch: PreferenceBatch) -> int:
        """Number of items of a batch."""
        return len(batch.is_chosen) // self.objective.n_answers

    def loss(self, model: nn.Module, batch: PreferenceBatch) -> Loss:
        """The loss of the objective, as a sum over items."""
        placed = place_batch(model, batch)
        ratios, kl = compute_ratios(model, placed)
        is_chosen, smoothing = placed.batch.is_chosen, self.config.label_smoothing or 0.0
        losses, _ = self.objective.judge(ratios, is_chosen, kl, smoothing)
        return Loss(losses.sum(), losses.sum().detach(), len(losses))

    @torch.no_grad()
    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Loss without smoothing, reward accuracy, margin and rewards, and divergence, of a split."""

        def measure_batch(items: IdArray) -> list[float]:
            placed = place_batch(model, self.make_batch(split, items))
            ratios, kl = compute_ratios(model, placed)
            is_chosen, rewards = placed.batch.is_chosen, self.objective.beta * ratios
            losses, is_right = self.objective.judge(ratios, is_chosen, kl, 0.0)
            values = losses, is_right, rewards[is_chosen], rewards[~is_chosen], kl
            return [float(value.sum()) for value in values]

        n, n_chosen = len(self.stores[split]), int(self.stores[split].is_chosen.sum())
        n_items = n // self.objective.n_answers
        counts = np.maximum([n_items, n_items, n_chosen, n - n_chosen, n], 1)
        sums = np.sum([*map_fn(measure_batch, self.plan_eval(split))], axis=0)
        loss, accuracy, chosen, rejected, kl = (sums / counts).tolist()
        return {
            "loss": loss, "accuracy": accuracy, "margin": chosen - rejected, "chosen_reward": chosen,
            "rejected_reward": rejected, "kl": kl,
        }  # fmt: skip

    @torch.no_grad()
    def measure_reference(self, model: nn.Module, split: str, map_fn: MapFn = map) -> Tensor:
        """The log-probabilities of a split by the reference model, in the shape of ``reference``."""
        log_probs, plan = torch.zeros_like(self.reference[split]), self.plan_eval(split)
        self.reference[split] = log_probs  # log-ratios to 0 are log-probabilities

        def measure_batch(items: IdArray) -> list[list[float]]:
            batch, host = place_batch(model, self.make_batch(split, items))
            pairs = zip(batch.answers, host.answers, strict=True)
            return [log_ratios(model, *pair).tolist() for pair in pairs]

        results = [*map_fn(measure_batch, plan)]
        for items, values in zip(plan, results, strict=True):
            log_probs[:, self._find_rows(items)] = torch.tensor(values)
        return log_probs

    def count_training_tokens(self, tokenizer: Tokenizer) -> TrainingCounts:
        """Counts of the answers."""
        n_chosen = int(self.train.is_chosen.sum())
        return TrainingCounts(labels={"true": n_chosen, "false": len(self.train) - n_chosen})

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """Loss and accuracy of the reference model."""
        return self.objective.compute_baselines(self.stores[split].is_chosen)

    def measure_rows(self, store: PreferenceStore) -> IdArray:
        """Number of tokens of each item, whose answers count together."""
        n = self.objective.n_answers
        longest: IdArray = np.maximum(store.lengths, store.mismatched_lengths).reshape(-1, n).max(1)
        return n * longest


def log_ratios(model: nn.Module, answers: ScoredAnswers, host: ScoredAnswers) -> Tensor:
    """log π(y|x) - log π_ref(y|x) of answers: (N,). ``host`` are those on the CPU."""
    assert isinstance(model, CausalLM | Ensemble)
    features = causal_lm_features(model, answers.windows, host.windows)
    log_probs = sequence_log_probs(features, model.head, answers.windows.labels, host.windows.labels)
    return log_probs[: len(answers.log_probs)] - answers.log_probs  # a dummy batch has a row, but no answer


def compute_ratios(model: nn.Module, batch: PlacedBatch[PreferenceBatch]) -> tuple[Tensor, Tensor]:
    """Log-ratios of the answers (N,), and their z0 (N,), nan where it is not read; it has no gradient."""
    answers, *mismatched = zip(batch.batch.answers, batch.host.answers, strict=True)
    kl = torch.full_like(answers[0].log_probs, math.nan)
    for pair in mismatched:
        with torch.no_grad():
            kl = block_divergences(log_ratios(model, *pair))
    return log_ratios(model, *answers), kl


def open_split_preferences(recipe: Recipe, split: str) -> Preferences:
    """Open the files of a split; validation may be a share of the training preferences."""
    return open_preferences(*recipe.data.select_split(split), needs_pairs=recipe.task.name == "dpo")


class PreferenceObjective(ABC):
    """What is learned of log-ratios to the reference model; a reward is beta times a log-ratio."""

    kind = "decoder"
    label_smoothing = 0.0
    metrics = ("loss", "accuracy")
    title: ClassVar[str]
    n_answers: ClassVar[int]  # of an item of the data: 2 for pairs
    needs_kl: ClassVar[bool]  # whether the loss reads z0
    beta: float

    @abstractmethod
    def judge(self, ratios: Tensor, is_chosen: Tensor, kl: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        """The loss of each item, and whether its rewards are on the right side, of log-ratios and z0."""

    @abstractmethod
    def compute_baselines(self, is_chosen: IdArray) -> Baselines:
        """Loss and accuracy of the reference model, whose rewards are 0."""

    @abstractmethod
    def shard(self, rows: IdArray, n: int) -> list[IdArray]:
        """Distribute the items of a batch over n processes; no shard is empty."""

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raise a UserError if a file has no preferences, or there is no model to start from."""
        if recipe.init_from is None:
            raise UserError(
                f"task {recipe.task.name!r} starts from a trained language model, which is its reference: "
                "set init_from=RUN"
            )
        for split in recipe.data.splits:
            open_split_preferences(recipe, split)

    @classmethod
    def iter_texts(cls, recipe: Recipe) -> Iterator[str]:
        """The prompts and answers of the training text."""
        return read_preference_texts(open_split_preferences(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> PreferenceTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        check_causal_lm_decoding(recipe, tokenizer)
        chat = recipe.generation.chat or ChatTask.chat
        template = get_prompt_template(recipe, tokenizer)
        prefix_ids = template.prefix_ids if template.always_add_prefix else []
        cache, max_len = recipe.token_cache_dir, min(recipe.data.max_len, recipe.model.max_len)
        stores: dict[str, PreferenceStore] = {}
        for split in recipe.data.splits:
            texts = open_split_preferences(recipe, split)
            store = open_preference_store(texts, chat, prefix_ids, tokenizer, cache, max_len=max_len)
            report_split(report, split, store.report.describe(), unknown=store.count_unknown(tokenizer))
            if stores:
                warn_learned_texts(split, store.hash_texts(), None, stores["train"].hash_texts(), report)
            stores[split] = store
        if recipe.model.dropout:
            report.info(
                tr(
                    "warning: with model.dropout={dropout:g} the log-ratios of a step are noisy; set "
                    "model.dropout=0",
                    dropout=recipe.model.dropout,
                )
            )
        task = PreferenceTask(stores, TASK.build(recipe.task), tokenizer.pad_id, recipe.train)
        report.info(task.make_sampler(task.train).describe())
        return task


@TASK.register("dpo")
class DpoTask(PreferenceObjective):
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

    title, n_answers, needs_kl = "A language model of preferences (DPO)", 2, False

    def __init__(self, *, beta: PositiveFloat = 0.1) -> None:
        self.beta = beta

    def judge(self, ratios: Tensor, is_chosen: Tensor, kl: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        chosen, rejected = ratios.unflatten(0, (2, len(ratios) // 2))
        return dpo_losses(chosen, rejected, self.beta, smoothing), chosen > rejected

    def compute_baselines(self, is_chosen: IdArray) -> Baselines:
        values = {"loss": math.log(2), "accuracy": 0.5}
        return {name: Baseline(value, "reference model") for name, value in values.items()}

    def shard(self, rows: IdArray, n: int) -> list[IdArray]:
        return shard_rows(rows, n)


@TASK.register("kto")
class KtoTask(PreferenceObjective):
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

    title, n_answers, needs_kl = "A language model of preferences (KTO)", 1, True

    def __init__(
        self,
        *,
        beta: PositiveFloat = 0.1,
        desirable_weight: PositiveFloat = 1.0,
        undesirable_weight: PositiveFloat = 1.0,
    ) -> None:
        self.beta, self.weights = beta, (desirable_weight, undesirable_weight)

    def judge(self, ratios: Tensor, is_chosen: Tensor, kl: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        return kto_losses(ratios, is_chosen, kl, self.beta, self.weights), (ratios > kl) == is_chosen

    def compute_baselines(self, is_chosen: IdArray) -> Baselines:
        share = float(is_chosen.mean())
        loss = (share * self.weights[0] + (1 - share) * self.weights[1]) / 2
        accuracy = Baseline(max(share, 1 - share), "majority class", "true" if share >= 0.5 else "false")
        return {"loss": Baseline(loss, "reference model"), "accuracy": accuracy}

    def shard(self, rows: IdArray, n: int) -> list[IdArray]:
        # blocks stay whole, so that z0 does not depend on the number of processes
        blocks = np.split(rows, range(KL_BLOCK, len(rows), KL_BLOCK))
        return [np.concatenate(blocks[rank::n]) for rank in range(min(n, len(blocks)))]
