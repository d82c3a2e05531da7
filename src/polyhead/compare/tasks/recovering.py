"""Compare masked language models, denoising models and chat models: the loss and accuracy of the tokens they
predict.

Shapes: B units in a batch, T tokens, C features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from polyhead.compare.cost_metrics import average_batch_size, loss_and_ppl
from polyhead.compare.io import JsonDict
from polyhead.compare.tasks.base import (
    COMPARED_TASKS,
    TOKEN_LOSS_MEASURE,
    EvalBatch,
    PageWords,
    apply_head,
    decode_nothing,
    make_measure,
    pick_eval_split,
    score_units,
)
from polyhead.compare.tasks.language import make_lm_batch
from polyhead.compare.tasks.translation import encode_empty_source, make_seq2seq_batch
from polyhead.config.recipe import Recipe
from polyhead.core.array_types import Floats
from polyhead.nn.device import place_batch
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.run.run import Run
from polyhead.train.tasks.common import causal_lm_features, seq2seq_features
from polyhead.train.tasks.masked import MaskedBatch, masked_lm_features

_TYPICAL_POOL = 64  # batches among which the one of median width is typical


@dataclass(frozen=True)
class ComparedTokenPrediction:
    """How designs of a token prediction task are compared: what a unit is, and how it is evaluated."""

    page_words: PageWords
    features: Callable[[Any, Any], Tensor]  # (model, batch) -> (B, T, C)
    make_batch: Callable[[Any], EvalBatch]  # batch -> evaluation batch
    compute_logits: Callable[[Any, Tensor], Tensor] = (
        apply_head  # (model, features of the labeled tokens) -> logits
    )
    encode_memory: Callable[[Run], Any] = decode_nothing  # output of the encoder that a decoder attends to

    measure_decode_speed: ClassVar = staticmethod(decode_nothing)
    tokens_per_step: ClassVar = staticmethod(average_batch_size)
    measures: ClassVar = (
        TOKEN_LOSS_MEASURE,
        make_measure("accuracy", is_per_token=True, across_tokenizers=False),
    )

    def typical_batch(self, task: Any) -> EvalBatch:
        """Among the first validation batches, one of the median width."""
        batches = [batch for _, batch in islice(task.eval_batches("valid"), _TYPICAL_POOL)]
        return self.make_batch(
            sorted(batches, key=lambda batch: int(batch.labels.size(1)))[len(batches) // 2]
        )

    def eval_batches(self, task: Any) -> Iterator[EvalBatch]:
        """Batches of the validation text."""
        return (self.make_batch(batch) for _, batch in task.eval_batches("valid"))

    def evaluate(self, run: Run, recipe: Recipe, task: Any) -> tuple[JsonDict, JsonDict]:
        """Loss on the validation text; accuracy on the test text, if there is one."""
        split, functions = pick_eval_split(recipe), (self.features, self.compute_logits)
        valid = text = score_units(run.model, task.eval_batches("valid"), *functions)
        if split == "test":
            text = score_units(run.model, task.eval_batches(split), *functions)
        results: JsonDict = {
            "split": split,
            **loss_and_ppl(sum(unit.nll for unit in valid), sum(unit.n_tokens for unit in valid)),
            "accuracy": sum(unit.n_correct for unit in text) / sum(unit.n_tokens for unit in text),
            "signatures": {},
        }
        return results, {"valid": list(map(list, valid)), "text": list(map(list, text))}

    def unit_statistics(self, outputs: JsonDict, base: Recipe) -> dict[str, Floats]:
        """-log p and correct predictions of every unit, and its number of labeled tokens."""
        valid, text = (np.array(outputs[name], dtype=np.float64) for name in ("valid", "text"))
        return {"loss": valid[:, [0, 2]], "accuracy": text[:, [1, 2]]}


@COMPARED_TASKS.register("masked-lm")
def compare_masked_lm() -> ComparedTokenPrediction:
    """Compare masked language models; a unit is a row of ``data.max_len`` tokens."""
    return ComparedTokenPrediction(
        page_words=PageWords("rows of text", "forward pass over full rows, per predicted token"),
        features=lambda model, batch: model.encoder(batch.tokens, batch.pos),
        compute_logits=lambda model, x: model.head(model.apply_transform(x)),
        make_batch=make_mlm_batch,
    )


def make_mlm_batch(batch: MaskedBatch) -> EvalBatch:
    """Evaluation batch of masked rows: only the labeled tokens go through the head."""
    token_masks = {"encoder": None if batch.pos is None else batch.pos >= 0}
    return EvalBatch(
        lambda model: masked_lm_features(model, *place_batch(model, batch)),
        int((batch.labels != IGNORE_INDEX).sum()),
        token_masks,
    )


@COMPARED_TASKS.register("denoising")
def compare_denoising() -> ComparedTokenPrediction:
    """Compare denoising models; a unit is a text of at most ``data.max_len`` tokens."""
    return ComparedTokenPrediction(
        page_words=PageWords("texts", "forward pass including the encoder, per generated token"),
        features=seq2seq_features,
        make_batch=make_seq2seq_batch,
        encode_memory=encode_empty_source,
    )


@COMPARED_TASKS.register("chat")
def compare_chat() -> ComparedTokenPrediction:
    """Compare chat models; a unit is a conversation."""
    return ComparedTokenPrediction(
        page_words=PageWords(
            "conversations", "forward pass, per token of the assistant", has_fixed_units=True
        ),
        features=causal_lm_features,
        make_batch=make_lm_batch,
    )
