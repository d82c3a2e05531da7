"""Interface of a compared task: its metrics, and how its models are evaluated.

Shapes: B rows, T tokens, R resamples, N units that a resample draws, K statistics of a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from polyhead.compare.io import JsonDict
from polyhead.compare.significance import BootstrapTest, SignificanceTest, mean_from_sums
from polyhead.config.recipe import Recipe
from polyhead.core.array_types import Floats
from polyhead.core.errors import UserError
from polyhead.core.registry import Registry
from polyhead.data.stores.build_cache import IdArray
from polyhead.evaluate.metrics import KNOWN_METRICS, Metric
from polyhead.evaluate.perplexity import TokenLoss, token_losses
from polyhead.nn.device import to_model_device
from polyhead.run.run import Run


@dataclass(frozen=True, kw_only=True)
class QualityMeasure(Metric):
    """A metric that designs are compared by, with its test of significance."""

    test: SignificanceTest
    is_per_token: bool = False  # units are cut or counted by tokens, so they are not paired across tokenizers
    across_tokenizers: bool = True  # whether values are comparable across tokenizers


Measures = Sequence[QualityMeasure]

MEAN_TEST = BootstrapTest(mean_from_sums)


def make_measure(
    name: str, test: SignificanceTest = MEAN_TEST, is_per_token: bool = False, across_tokenizers: bool = True
) -> QualityMeasure:
    """The measure of a metric in ``KNOWN_METRICS``."""
    metric = vars(KNOWN_METRICS[name])
    return QualityMeasure(**metric, test=test, is_per_token=is_per_token, across_tokenizers=across_tokenizers)


TOKEN_LOSS_MEASURE = make_measure("loss", is_per_token=True, across_tokenizers=False)


def pick_eval_split(recipe: Recipe) -> str:
    """Split that all metrics but the loss are measured on: test if the recipe has it, else validation."""
    return "test" if recipe.data.test else "valid"


class PageWords(NamedTuple):
    """Task-specific wording of the page."""

    unit: str  # unit that a resample draws: "sentences"
    flops_note: str  # FLOPs that are counted as those of a token
    decoding_note: str = ""  # how decoding speed was measured; '' if nothing is decoded
    counted_unit: str = "token"  # unit that is predicted and counted
    has_fixed_units: bool = False  # whether units are those of the text, independent of the design


class EvalBatch(NamedTuple):
    """A batch for evaluation."""

    features: Callable[[Any], Tensor]  # model -> inputs of its head
    n_tokens: int  # predicted tokens, or texts for a classifier
    # for each stack of the model the positions (B, T) that are tokens; None: all
    token_masks: Mapping[str, Tensor | None]
    head: str = "head"  # attribute of the model that is applied to the features


def apply_head(model: Any, x: Tensor) -> Tensor:
    """Logits of the features, from the model's head."""
    out: Tensor = model.head(x)
    return out


@torch.no_grad()
def score_units(
    model: Any,
    batches: Iterable[tuple[IdArray, Any]],
    features: Callable[[Any, Any], Tensor],
    compute_logits: Callable[[Any, Tensor], Tensor] = apply_head,
) -> list[TokenLoss]:
    """Loss and correct predictions of the labeled tokens of each unit, in order of the unit numbers.

    ``features`` maps a model and a batch to (B, T, C), ``compute_logits`` those of one unit to logits.
    """
    by_number: dict[int, TokenLoss] = {}
    for numbers, batch in batches:
        device_batch = to_model_device(model, batch)
        rows = zip(numbers, features(model.eval(), device_batch), device_batch.labels, strict=True)
        by_number |= {
            int(number): token_losses(x, lambda part: compute_logits(model, part), y) for number, x, y in rows
        }
    return [by_number[number] for number in sorted(by_number)]


class ComparedTask(Protocol):
    """A compared task. ``task`` in its methods is the training task of the same name."""

    # the loss first; the second one ranks designs with different tokenizers
    measures: tuple[QualityMeasure, ...]
    page_words: PageWords

    def tokens_per_step(self, task: Any) -> float:
        """Tokens, or texts, that a training batch predicts: the mean over an epoch."""

    def typical_batch(self, task: Any) -> EvalBatch:
        """A batch of ordinary length; its forward pass gives the cost of a token."""

    def make_batch(self, batch: Any) -> EvalBatch:
        """The evaluation batch of a batch of the task."""

    def evaluate(self, run: Run, recipe: Recipe, task: Any) -> tuple[JsonDict, JsonDict]:
        """``split``, ``signatures`` and all metrics; and the outputs that ``unit_statistics`` needs later."""

    def unit_statistics(self, outputs: JsonDict, base: Recipe) -> dict[str, Floats]:
        """For each metric the per-unit statistics whose sums give its score: (N, K)."""

    def measure_decode_speed(self, run: Run, recipe: Recipe) -> float | None:
        """Tokens per second of decoding; None if nothing is decoded."""

    def encode_memory(self, run: Run) -> Any:
        """Encoder output of the shortest text; None if there is no decoder or it attends to no encoder."""


def decode_nothing(run: Run, recipe: Recipe | None = None) -> None:
    """Of a task without decoding: it has no speed, and no encoder output that a decoder attends to."""


COMPARED_TASKS: Registry[Any] = Registry("task", "polyhead.compare.tasks")


def get_compared_task(task: str) -> ComparedTask:
    """Look up how designs of a task are compared; a UserError if this is not implemented."""
    names = COMPARED_TASKS.names()
    if task not in names:
        raise UserError(f"task is {task!r}; supported tasks: {', '.join(names)}")
    part: ComparedTask = COMPARED_TASKS.get(task)()
    return part
