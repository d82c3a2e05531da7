"""Denoising encoder-decoders compared: the same damage to the same texts for every design."""

from __future__ import annotations

from polyhead.compare.tasks.base import COMPARED, Words
from polyhead.compare.tasks.recovering import Recovering
from polyhead.compare.tasks.translation import empty_source, piece
from polyhead.train.tasks.writing import features


@COMPARED.register("denoising")
def denoisers() -> Recovering:
    """A unit is a text of ``data.max_len`` tokens at most."""
    return Recovering(
        words=Words("texts", "of a forward pass, encoder included, for each token to be written"),
        numbered=lambda task, text: task.measured(text),
        features=features,
        piece=piece,
        reads=empty_source,
    )
