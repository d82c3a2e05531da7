"""How well a language model predicts a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from polyhead.analysis.recovered import Recovered, perplexity_of, recovered
from polyhead.data.arrays import Ints
from polyhead.data.rows import collate_rows
from polyhead.data.text import Text
from polyhead.data.token_store import TokenStore
from polyhead.errors import UserError, show
from polyhead.models import CausalLM
from polyhead.nn.place import beside
from polyhead.text.tokenizer import Tokenizer


class Perplexity(NamedTuple):
    """-log p of a text, and what it is divided by.

    Tokens depend on the tokenizer. Words and characters do not, so that any two models can be compared by them: a word
    is what stands between blanks, and each line's end is one more (as on WikiText; Merity et al., 2016).
    """

    nll: float  # natural logarithm
    tokens: int  # as many as were predicted
    words: int
    characters: int
    broken: int = 0  # lines that are no text or too long, left out

    @property
    def loss(self) -> float:
        """-log p of a token, in nats."""
        return self.nll / self.tokens

    @property
    def per_token(self) -> float:
        return perplexity_of(self.loss)

    @property
    def per_word(self) -> float:
        return perplexity_of(self.nll / max(self.words, 1))

    @property
    def bits_per_character(self) -> float:
        return self.nll / math.log(2) / max(self.characters, 1)


def of_text(model: CausalLM, tokenizer: Tokenizer, text: Text, width: int, batch_tokens: int) -> Perplexity:
    """Of files of plain text, in rows of ``width`` tokens, as many at a time as ``batch_tokens`` allow."""
    if not isinstance(text, Text):
        raise UserError(
            f"wanted a text that polyhead.data.text.open_text opens, got {show(text)}; run.perplexity([...]) is of texts as they are"
        )
    with TemporaryDirectory() as place:
        store = TokenStore.open_or_build(text, tokenizer, place, tokenizer.begin)
        return perplexity(model, store, width, max(1, batch_tokens // width))


@torch.no_grad()
def perplexity(
    model: CausalLM, store: TokenStore, width: int, rows: int, each: Callable[..., Iterable[Any]] = map
) -> Perplexity:
    """Of a whole text, read in rows of ``width`` tokens side by side, ``rows`` at a time: each token is predicted once.

    ``each`` applies a function to each of several things, as ``map`` does.
    """
    starts = np.arange(0, len(store) - 1, width)
    if not len(starts):
        raise UserError(f"{store.report.where}: one token, and nothing that it could predict; give more text")

    def read(some: Ints) -> Recovered:
        batch = beside(model, collate_rows(store, some, width, documents=len(store.begins) > 1))
        return recovered(model.features(batch.tokens, batch.pos), model.head, batch.labels)

    found = Recovered.of(each(read, [starts[i : i + rows] for i in range(0, len(starts), rows)]))
    report = store.report
    return Perplexity(found.nll, found.asked, report.words, report.characters, report.broken)
