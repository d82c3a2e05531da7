"""Compare tasks that predict some tokens of a text, by loss and by accuracy.

Shapes: B units in a batch, T tokens, C features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polyhead.compare.cost_metrics import average_batch_size, loss_and_ppl
from polyhead.compare.io import JsonDict
from polyhead.compare.significance import mean_from_sums
from polyhead.compare.tasks.base import (
    TOKEN_LOSS_MEASURE,
    EvalBatch,
    PageWords,
    QualityMeasure,
    pick_eval_split,
)
from polyhead.config.recipe import Recipe
from polyhead.core.array_types import Floats
from polyhead.data.stores.arrays import IdArray
from polyhead.evaluate.token_accuracy import TokenLoss, token_losses
from polyhead.nn.device import to_model_device
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.tasks.text_common import open_token_store

_TYPICAL_POOL = 64  # batches among which the one of median width is typical
NumberedBatches = Iterable[tuple[IdArray, Any]]
"""Unit numbers (B,) and the batch of these units."""


def apply_head(model: Any, x: Tensor) -> Tensor:
    """Logits of the features, from the model's head."""
    out: Tensor = model.head(x)
    return out


@dataclass(frozen=True)
class ComparedTokenPrediction:
    """How designs of a token prediction task are compared: what a unit is, and how it is evaluated."""

    page_words: PageWords
    number_batches: Callable[[Any, Any], NumberedBatches]  # (task, text) -> numbered batches of units
    features: Callable[[Any, Any], Tensor]  # (model, batch) -> (B, T, C)
    make_batch: Callable[[Any], EvalBatch]  # batch -> evaluation batch
    open_store: Callable[[Recipe, str, Tokenizer], Any] = open_token_store  # opens a split of the text
    compute_logits: Callable[[Any, Tensor], Tensor] = (
        apply_head  # (model, features of the labeled tokens) -> logits
    )
    make_memory: Callable[[Run], Any] = lambda run: None  # encoder output that a decoder attends to

    measures: ClassVar = (
        TOKEN_LOSS_MEASURE,
        QualityMeasure(
            "accuracy",
            "accuracy",
            "accuracy",
            mean_from_sums,
            False,
            4,
            3,
            is_per_token=True,
            across_tokenizers=False,
        ),
    )

    def read_labels(self, recipe: Recipe) -> tuple[str, ...]:
        """Empty: there are no classes."""
        return ()

    def tokens_per_step(self, task: Any) -> float:
        """Mean number of labeled tokens of a batch."""
        return average_batch_size(task)

    def typical_batch(self, task: Any) -> EvalBatch:
        """Among the first validation batches, one of the median width."""
        batches = [batch for _, batch in islice(self.number_batches(task, task.valid), _TYPICAL_POOL)]
        return self.make_batch(
            sorted(batches, key=lambda batch: int(batch.labels.size(1)))[len(batches) // 2]
        )

    def eval_batches(self, task: Any) -> Iterator[EvalBatch]:
        """Batches of the validation text."""
        return (self.make_batch(batch) for _, batch in self.number_batches(task, task.valid))

    def evaluate(self, run: Run, recipe: Recipe, task: Any) -> tuple[JsonDict, JsonDict]:
        """Loss on the validation text; accuracy on the test text, if there is one."""
        valid = text = self.score_units(run.model, self.number_batches(task, task.valid))
        if recipe.data.test:
            text = self.score_units(
                run.model, self.number_batches(task, self.open_store(recipe, "test", run.tokenizer))
            )
        results: JsonDict = {
            "split": pick_eval_split(recipe),
            **loss_and_ppl(sum(unit.nll for unit in valid), sum(unit.n_tokens for unit in valid)),
            "accuracy": sum(unit.n_correct for unit in text) / sum(unit.n_tokens for unit in text),
            "signatures": {},
        }
        return results, {"valid": list(map(list, valid)), "text": list(map(list, text))}

    @torch.no_grad()
    def score_units(self, model: Any, batches: NumberedBatches) -> list[TokenLoss]:
        """Loss and correct predictions of the labeled tokens of each unit, in order of the unit numbers."""
        by_number: dict[int, TokenLoss] = {}
        for numbers, batch in batches:
            device_batch = to_model_device(model, batch)
            rows = zip(numbers, self.features(model, device_batch), device_batch.labels, strict=True)
            by_number |= {
                int(number): token_losses(x, lambda part: self.compute_logits(model, part), y)
                for number, x, y in rows
            }
        return [by_number[number] for number in sorted(by_number)]

    def unit_statistics(self, outputs: JsonDict, base: Recipe) -> dict[str, Floats]:
        """-log p and correct predictions of every unit, and its number of labeled tokens."""
        valid, text = (np.array(outputs[name], dtype=np.float64) for name in ("valid", "text"))
        return {"loss": valid[:, [0, 2]], "accuracy": text[:, [1, 2]]}

    def measure_decode_speed(self, run: Run, recipe: Recipe) -> None:
        """None: nothing is decoded."""

    def encode_memory(self, run: Run) -> Any:
        """Encoder output that the decoder attends to, if the model has a decoder."""
        return self.make_memory(run)
