"""Compare denoising encoder-decoders: every design gets the same corruption of the same texts."""

from __future__ import annotations

from polyhead.compare.tasks.base import COMPARED_TASKS, PageWords
from polyhead.compare.tasks.recovering import ComparedTokenPrediction
from polyhead.compare.tasks.translation import encode_empty_source, make_seq2seq_batch
from polyhead.train.tasks.seq2seq_common import seq2seq_features


@COMPARED_TASKS.register("denoising")
def compare_denoising() -> ComparedTokenPrediction:
    """Compare denoising models; a unit is a text of at most ``data.max_len`` tokens."""
    return ComparedTokenPrediction(
        page_words=PageWords("texts", "of a forward pass, encoder included, for each token to be written"),
        number_batches=lambda task, text: task.eval_batches(text),
        features=seq2seq_features,
        make_batch=make_seq2seq_batch,
        make_memory=encode_empty_source,
    )
