"""How likely given texts are: of a translator after their sources, of a language model by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from polyhead.analysis.reading import at_once
from polyhead.analysis.recovered import perplexity_of
from polyhead.data.batches import plan_reading
from polyhead.errors import UserError
from polyhead.generate.decoder import to_host
from polyhead.generate.drawing import ranked
from polyhead.generate.frame import Frame
from polyhead.generate.outcome import Likely
from polyhead.generate.padding import pad
from polyhead.models import CausalLM, Seq2Seq
from polyhead.nn.loss import IGNORED
from polyhead.text.sides import between
from polyhead.text.tokenizer import Tokenizer

T = TypeVar("T")
S = TypeVar("S")
BATCH_TOKENS = 2048  # of texts that are scored together, a side, at the most


class PairScore(NamedTuple):
    """How likely a translation is given its source, or a text by itself."""

    log_prob: float  # natural logarithm, end of sentence included
    tokens: int  # as many as log_prob sums over


def scored(
    model: CausalLM | Seq2Seq,
    tokenizer: Tokenizer,
    about: Frame,
    sources: Sequence[str],
    targets: Sequence[str] | None,
    batch_tokens: int,
) -> list[PairScore]:
    """Of texts alone or of pairs; a UserError where a language model is given targets, or a translator none."""
    alone = model.config.kind == "decoder"
    if alone and targets is not None:
        raise UserError("this run is a language model: run.score(texts) is of texts alone, without targets")
    if not alone and targets is None:
        raise UserError(
            "this run is an encoder-decoder: run.score(sources, targets) is of pairs; give targets"
        )
    if targets is None:
        return score_texts(cast(CausalLM, model), tokenizer, about, sources, batch_tokens)
    return score_pairs(cast(Seq2Seq, model), tokenizer, sources, targets, batch_tokens)


def perplexity(scores: Sequence[PairScore]) -> float:
    """exp of the mean negative log-likelihood of their tokens. Of none there is no mean: a UserError."""
    tokens = sum(score.tokens for score in scores)
    if not tokens:
        raise UserError("perplexity is of a token, and there is none; give a text")
    return perplexity_of(-sum(score.log_prob for score in scores) / tokens)


@torch.inference_mode()
def score_pairs(
    model: Seq2Seq, t: Tokenizer, sources: Sequence[str], targets: Sequence[str], batch_tokens: int
) -> list[PairScore]:
    """log p(target | source) of each pair, teacher forced."""
    encoded = t.encode(sources), t.target.encode(targets)
    if len(sources) != len(targets):
        raise UserError(f"{len(sources)} sources and {len(targets)} targets: they must be line by line")
    pairs = list(zip(*encoded, strict=True))
    sides = between(t)
    around = len(sides.before) + len(sides.after), len(sides.opening) + 1
    lengths = [
        np.array([len(pair[side]) + around[side] for pair in pairs], dtype=np.int64) for side in (0, 1)
    ]
    _check("pair", np.maximum(*lengths), model.config.max_len)
    device = next(model.parameters()).device

    def batch(pairs: Sequence[tuple[list[int], list[int]]]) -> list[PairScore]:
        source, source_pos = pad([sides.source(source) for source, _ in pairs], t.pad_id, device)
        target, _ = pad([sides.read(target) for _, target in pairs], t.pad_id, device)
        labels, _ = pad([sides.said(target) for _, target in pairs], IGNORED, device)
        if sides.forced:
            labels[:, : len(sides.opening)] = IGNORED
        return _sums(model(source, target, source_pos), labels)

    return _batched(pairs, lengths[0], lengths[1], at_once(model, batch_tokens), batch)


@torch.inference_mode()
def score_texts(
    model: CausalLM, t: Tokenizer, frame: Frame, texts: Sequence[str], batch_tokens: int
) -> list[PairScore]:
    """log p(text) of each text, as one that begins and, where the frame has an end, ends there."""
    rows = [[*frame.begin, *ids, *frame.end] for ids in t.encode(texts)]
    asked = [i for i, row in enumerate(rows) if len(row) > len(frame.begin)]
    lengths = np.array([len(rows[i]) - 1 for i in asked], dtype=np.int64)
    _check("text", np.array([len(row) - 1 for row in rows], dtype=np.int64), model.config.max_len)

    def batch(rows: Sequence[list[int]]) -> list[PairScore]:
        logits, labels = _following(model, rows, t.pad_id)
        labels[:, : len(frame.begin) - 1] = IGNORED
        return _sums(logits, labels)

    scores = _batched([rows[i] for i in asked], lengths, lengths, at_once(model, batch_tokens), batch)
    found = dict(zip(asked, scores, strict=True))
    return [found.get(i, PairScore(0.0, 0)) for i in range(len(texts))]


@torch.inference_mode()
def score_tokens(model: CausalLM, pad_id: int, rows: Sequence[list[int]], top: int = 0) -> list[Likely]:
    """Of each token of each row but its first how likely it is behind those before it, and the ``top`` likeliest there."""
    lengths = np.array([max(1, len(row) - 1) for row in rows], dtype=np.int64)
    _check("text", lengths, model.config.max_len)

    def batch(rows: Sequence[list[int]]) -> list[Likely]:
        log_p, chosen = _log_probs(*_following(model, rows, pad_id))
        return [
            Likely(said, p[: len(said)], ranked(own[: len(said)], top) if top else [()] * len(said))
            for (_, *said), p, own in zip(rows, to_host(chosen).tolist(), log_p, strict=True)
        ]

    return _batched(rows, lengths, lengths, at_once(model, BATCH_TOKENS), batch)


def _following(model: CausalLM, rows: Sequence[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """What a model expects behind each token of each row but the last, (B, T, V), and the tokens that come there (B, T)."""
    device = next(model.parameters()).device
    # behind a single token none comes, but a model reads one at least
    tokens, pos = pad([row[:-1] or row for row in rows], pad_id, device)
    labels, _ = pad([row[1:] or [IGNORED] for row in rows], IGNORED, device)
    return model(tokens, pos), labels


def _check(what: str, lengths: np.ndarray, max_len: int) -> None:
    for i in np.flatnonzero(lengths > max_len)[:1].tolist():
        raise UserError(f"{what} {i + 1} has {lengths[i]} tokens; this model's max_len is {max_len}")


def _batched(
    items: Sequence[T],
    a: np.ndarray,
    b: np.ndarray,
    batch_tokens: int,
    score: Callable[[Sequence[T]], list[S]],
) -> list[S]:
    """Scores in the order of the items, computed in batches of items of like length."""
    scores: dict[int, S] = {}
    for rows in plan_reading(a, b, batch_tokens):
        scores |= zip(rows.tolist(), score([items[i] for i in rows]), strict=True)
    return [scores[i] for i in range(len(items))]


def _log_probs(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, V), (B, T) -> the log-probability of every token (B, T, V) and of each label (B, T), 0 where there is none."""
    log_p = logits.float().log_softmax(-1)
    chosen = log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return log_p, chosen.masked_fill(labels == IGNORED, 0.0)


def _sums(logits: Tensor, labels: Tensor) -> list[PairScore]:
    """(B, T, V), (B, T) -> the log-probability of each row's labels."""
    _, chosen = _log_probs(logits, labels)
    counts = (labels != IGNORED).sum(1)
    return [PairScore(float(p), int(n)) for p, n in zip(chosen.double().sum(1), counts, strict=True)]
