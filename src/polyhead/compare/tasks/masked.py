"""Compare masked language models: every design gets the same masked tokens."""

from __future__ import annotations

from polyhead.compare.tasks.base import COMPARED_TASKS, EvalBatch, PageWords
from polyhead.compare.tasks.recovering import ComparedTokenPrediction
from polyhead.nn.device import to_model_device
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.train.tasks.masked import MaskedBatch, masked_lm_features


@COMPARED_TASKS.register("masked-lm")
def compare_masked_lm() -> ComparedTokenPrediction:
    """Compare masked language models; a unit is a row of ``data.max_len`` tokens."""
    return ComparedTokenPrediction(
        page_words=PageWords(
            "rows of text", "of a forward pass over full rows, for each token that is asked for"
        ),
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
