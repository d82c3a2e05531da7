"""Compare masked language models, denoising models and chat models: the loss and accuracy of the tokens they
predict.

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
from polyhead.compare.tasks.base import (
    COMPARED_TASKS,
    TOKEN_LOSS_MEASURE,
    EvalBatch,
    PageWords,
    make_measure,
    pick_eval_split,
)
from polyhead.compare.tasks.language import make_lm_batch
from polyhead.compare.tasks.translation import encode_empty_source, make_seq2seq_batch
from polyhead.config.recipe import Recipe
from polyhead.core.array_types import Floats
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.conversation_store import ConversationStore
from polyhead.evaluate.perplexity import TokenLoss, token_losses
from polyhead.nn.device import to_model_device
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.tasks.chat import ChatTask, open_conversation_store
from polyhead.train.tasks.common import causal_lm_features, open_token_store, seq2seq_features
from polyhead.train.tasks.masked import MaskedBatch, masked_lm_features

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
        make_measure("accuracy", is_per_token=True, across_tokenizers=False),
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


@COMPARED_TASKS.register("masked-lm")
def compare_masked_lm() -> ComparedTokenPrediction:
    """Compare masked language models; a unit is a row of ``data.max_len`` tokens."""
    return ComparedTokenPrediction(
        page_words=PageWords("rows of text", "forward pass over full rows, per predicted token"),
        number_batches=lambda task, text: task.eval_batches(text),
        features=lambda model, batch: model.encoder(batch.tokens, batch.pos),
        compute_logits=lambda model, x: model.head(model.apply_transform(x)),
        make_batch=make_mlm_batch,
    )


def make_mlm_batch(batch: MaskedBatch) -> EvalBatch:
    """Evaluation batch of masked rows: only the labeled tokens go through the head."""
    token_masks = {"encoder": None if batch.pos is None else batch.pos >= 0}
    return EvalBatch(
        lambda model: masked_lm_features(model, to_model_device(model, batch)),
        int((batch.labels != IGNORE_INDEX).sum()),
        token_masks,
    )


@COMPARED_TASKS.register("denoising")
def compare_denoising() -> ComparedTokenPrediction:
    """Compare denoising models; a unit is a text of at most ``data.max_len`` tokens."""
    return ComparedTokenPrediction(
        page_words=PageWords("texts", "forward pass including the encoder, per generated token"),
        number_batches=lambda task, text: task.eval_batches(text),
        features=seq2seq_features,
        make_batch=make_seq2seq_batch,
        make_memory=encode_empty_source,
    )


@COMPARED_TASKS.register("chat")
def compare_chat() -> ComparedTokenPrediction:
    """Compare chat models; a unit is a conversation."""
    return ComparedTokenPrediction(
        page_words=PageWords(
            "conversations", "forward pass, per token of the assistant", has_fixed_units=True
        ),
        number_batches=number_batches,
        features=causal_lm_features,
        make_batch=make_lm_batch,
        open_store=open_conversation_store,
    )


def number_batches(task: ChatTask, store: ConversationStore) -> Iterator[tuple[IdArray, TokenWindows]]:
    """Batches of conversations with their numbers."""
    return ((rows, store.collate(rows, task.pad_id)) for rows in task.make_sampler(store).epoch_batches())
