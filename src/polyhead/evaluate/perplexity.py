"""Perplexity of a language model on a text, and accuracy of its tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.core.errors import NotFiniteError, UserError, format_value
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.data.readers.plain_text import TextFiles
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.token_store import TokenStore
from polyhead.models import CausalLM
from polyhead.nn.device import to_model_device
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.unknown_tokens import UnknownTokens


def loss_to_perplexity(loss: float) -> float:
    """exp of a loss, at most exp(700), so that it is finite."""
    return math.exp(min(loss, 700.0))


class TokenLoss(NamedTuple):
    """Sums over the predicted tokens."""

    nll: float = 0.0  # -log p, natural
    n_correct: int = 0  # tokens that were the most likely
    n_tokens: int = 0

    @classmethod
    def from_parts(cls, parts: Iterable[Sequence[float]]) -> TokenLoss:
        """The sum of several."""
        return cls(*map(sum, zip(*parts, strict=True)))

    def compute_metrics(self) -> dict[str, float]:
        """Loss in nats, perplexity and accuracy, per predicted token."""
        loss = self.nll / max(self.n_tokens, 1)
        return {
            "loss": loss,
            "ppl": loss_to_perplexity(loss),
            "accuracy": self.n_correct / max(self.n_tokens, 1),
        }


@torch.no_grad()
def token_losses(
    features: Tensor, head: Callable[[Tensor], Tensor], labels: Tensor, chunk: int = 512
) -> TokenLoss:
    """Loss of features (..., C) with labels (...), -100 ignored; at most ``chunk`` rows of logits at once."""
    is_label = labels != IGNORE_INDEX
    features, labels = features[is_label], labels[is_label]
    nll, n_correct = 0.0, 0
    for x, y in zip(features.split(chunk), labels.split(chunk), strict=True):
        scores = head(x).float()
        nll += float(torch.nn.functional.cross_entropy(scores, y, reduction="sum"))
        n_correct += int((scores.argmax(-1) == y).sum())
    return TokenLoss(nll, n_correct, len(labels))


class Perplexity(NamedTuple):
    """-log p of a text, and the counts that normalise it.

    Token counts depend on the tokenizer. Counts of words and characters do not, so any two models can be
    compared by them: words are separated by whitespace, and each line end is one more (as on WikiText; Merity
    et al., 2016).
    """

    nll: float  # natural logarithm
    tokens: int  # number of predicted tokens
    words: int
    characters: int
    malformed: int = 0  # lines that are invalid or too long, left out
    unknown_tokens: UnknownTokens = UnknownTokens()

    @property
    def loss(self) -> float:
        """-log p per token, in nats."""
        return self.nll / self.tokens

    @property
    def per_token(self) -> float:
        return loss_to_perplexity(self.loss)

    @property
    def per_word(self) -> float:
        return loss_to_perplexity(self.nll / max(self.words, 1))

    @property
    def bits_per_character(self) -> float:
        return self.nll / math.log(2) / max(self.characters, 1)

    def compute_metrics(self) -> dict[str, float]:
        """Loss and perplexity per token, perplexity per word, bits per character."""
        return {
            "loss": self.loss,
            "ppl": self.per_token,
            "word_ppl": self.per_word,
            "bits_per_char": self.bits_per_character,
        }


def text_perplexity(
    model: CausalLM, tokenizer: Tokenizer, text: TextFiles, width: int, batch_tokens: int
) -> Perplexity:
    """Perplexity of plain text files, in rows of ``width`` tokens, up to ``batch_tokens`` per batch.

    NaN or infinity is a NotFiniteError.
    """
    if not isinstance(text, TextFiles):
        raise UserError(
            "expected a text opened by polyhead.data.readers.plain_text.open_text, got "
            f"{format_value(text)}; for strings use run.perplexity([...])"
        )
    with TemporaryDirectory() as directory:
        store = TokenStore.open_or_build(text, tokenizer, directory, tokenizer.prefix_ids)
        result = compute_perplexity(model, store, width, max(1, batch_tokens // width))
        result = result._replace(unknown_tokens=store.count_unknown(tokenizer))
    if not math.isfinite(result.nll):
        raise NotFiniteError
    return result


def plan_rows(store: TokenStore, width: int, rows: int) -> list[IdArray]:
    """The rows of every batch of a whole text, in which each token but the first is predicted once: (B, 2).

    A row is the range of its input tokens, after ``count_prefix`` tokens. It ends between documents if it
    can, so a document that fits into a row is read from its beginning; a longer one is cut into rows.
    """
    documents, n_inputs = store.document_starts, len(store) - 1
    n_unused = int(store.has_document_prefix)  # the token before a prefix predicts nothing
    plan, start = list[tuple[int, int]](), 0
    while start < n_inputs:
        limit = start + width - count_prefix(store, np.array([[start]]), width).item()
        last = int(documents[np.searchsorted(documents, limit + n_unused, side="right") - 1])
        stop = last if start < last and limit < n_inputs else min(limit, n_inputs)
        plan.append((start, stop))
        start = stop
    return [np.array(plan[i : i + rows]) for i in range(0, len(plan), rows)]


def count_prefix(store: TokenStore, starts: IdArray, width: int) -> IdArray:
    """Number of the store's ``prefix_ids`` before rows that do not begin with them: (B, 1) -> (B, 1)."""
    n = len(store.prefix_ids) if len(store.prefix_ids) < width else 0
    first_tokens = store.ids[np.minimum(starts + np.arange(n), len(store) - 1)]
    return n * (first_tokens != store.prefix_ids[:n]).any(1, keepdims=True)


def collate_rows(store: TokenStore, rows: IdArray, width: int) -> TokenWindows:
    """Rows of ``plan_rows``, of ``width`` tokens each; attention does not cross documents."""
    starts, stops = rows[:, :1], rows[:, 1:]
    origins = starts - count_prefix(store, starts, width)
    positions = origins + np.arange(width + 1)
    cells = store.ids[np.clip(positions, 0, len(store) - 1)].astype(np.int64)
    for column, token in enumerate(store.prefix_ids):
        cells[(positions < starts)[:, column], column] = token
    documents = np.searchsorted(store.document_starts, np.maximum(positions, starts), side="right") - 1
    first = store.document_starts[documents]
    pos = positions - np.where(first > starts, first, origins)
    is_label = (positions > starts) & (positions <= stops) & ~(store.has_document_prefix & (pos == 0))
    labels = np.where(is_label, cells, IGNORE_INDEX)
    has_documents = len(store.document_starts) > 1
    return TokenWindows(
        torch.from_numpy(cells[:, :-1]),
        torch.from_numpy(pos[:, :-1]) if has_documents else None,
        torch.from_numpy(labels[:, 1:]),
        has_documents,
    )


@torch.no_grad()
def compute_perplexity(
    model: CausalLM, store: TokenStore, width: int, rows: int, map_fn: Callable[..., Iterable[Any]] = map
) -> Perplexity:
    """Perplexity of a whole text in rows of ``width`` tokens, ``rows`` at a time; each token counts once.

    ``map_fn`` applies a function to each of several items, as ``map`` does.
    """
    plan = plan_rows(store, width, rows)
    if not plan:
        raise UserError(
            f"{store.report.source_label}: only one token, so there is nothing to predict; use more text"
        )

    def read_rows(batch_rows: IdArray) -> TokenLoss:
        batch = to_model_device(model, collate_rows(store, batch_rows, width))
        return token_losses(model.features(batch.tokens, batch.pos), model.head, batch.labels)

    total = TokenLoss.from_parts(map_fn(read_rows, plan))
    report = store.report
    return Perplexity(total.nll, total.n_tokens, report.words, report.characters, report.malformed)
