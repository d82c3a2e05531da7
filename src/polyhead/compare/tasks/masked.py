"""Masked language models compared: hidden tokens, the same ones for every design."""

from __future__ import annotations

from polyhead.compare.tasks.base import COMPARED, Piece, Words
from polyhead.compare.tasks.recovering import Recovering
from polyhead.nn.loss import IGNORED
from polyhead.nn.place import beside
from polyhead.train.tasks.masked import Masked, features


@COMPARED.register("masked-lm")
def masked_languages() -> Recovering:
    """A unit is a row of ``data.max_len`` tokens."""
    return Recovering(
        words=Words("rows of text", "of a forward pass over full rows, for each token that is asked for"),
        numbered=lambda task, text: task.measured(text),
        features=lambda model, batch: model.encoder(batch.tokens, batch.pos),
        said=lambda model, x: model.head(model.transformed(x)),
        piece=piece,
    )


def piece(batch: Masked) -> Piece:
    """A batch as it is measured: only what is asked for goes through the head."""
    real = {"encoder": None if batch.pos is None else batch.pos >= 0}
    return Piece(
        lambda model: features(model, beside(model, batch)), int((batch.labels != IGNORED).sum()), real
    )
