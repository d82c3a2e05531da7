"""Beam search over a batch of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polyhead.errors import UserError
from polyhead.generate.state import Bools, Decoder, Floats, Hypothesis, Ints, Rules, State, normalised
from polyhead.registry import Choice

__all__ = ["EarlyStopping", "Hypothesis", "beam_search"]

EarlyStopping = bool | Literal["never"]


@torch.inference_mode()
def beam_search(
    model: Decoder,
    source: Tensor,
    source_pos: Tensor | None,
    *,
    bos_id: int | None = None,
    eos_id: int,
    beam_size: int,
    max_new_tokens: Sequence[int],
    length_penalty: float = 1.0,
    n_best: int = 1,
    min_new_tokens: int = 0,
    early_stopping: EarlyStopping = False,
    prefix: Sequence[Sequence[int]] | None = None,
    certain: int = 0,
    forbidden: Sequence[int] = (),
    cache: Choice | None = None,
) -> list[list[Hypothesis]]:
    """The ``n_best`` outputs y of each source sentence (B, S) by log P(y | x) / |y| ** length_penalty, best first.

    |y| counts the end of the sentence. Each step extends the live hypotheses by one token and looks at the
    2 x beam_size best extensions: those among the first beam_size that end are finished, the best beam_size of the
    rest live on. At ``max_new_tokens`` of its sentence (end of sentence included) a hypothesis is finished as it is.
    A sentence is done when nothing lives, or when beam_size hypotheses are finished and ``early_stopping`` is

    - ``True``: at once;
    - ``False``: and the best live one, scored at its present length, is no better than the worst finished one;
    - ``"never"``: and the best live one cannot become better than the worst finished one, whatever its length:
      log-probabilities only fall, so that its bound is its present log-probability at the greatest length
      (the present one if length_penalty is negative).

    These are the rules of Hugging Face ``generate``. ``prefix`` is the forced beginning of each output; it is part
    of y, in tokens, score and length, but its first ``certain`` tokens cost nothing. ``min_new_tokens`` are wanted
    before the end of the sentence, and ``forbidden`` tokens never come. A sentence gets the same result in any batch.
    """
    rules = Rules(eos_id, max_new_tokens, min_new_tokens, [[]] * len(source) if prefix is None else prefix, certain, forbidden)
    rules.check(len(source))
    if not 1 <= n_best <= beam_size:
        raise UserError(f"n_best is {n_best}, wanted 1 to beam_size ({beam_size})")
    results = [Beams(limit, beam_size, length_penalty, early_stopping) for limit in max_new_tokens]
    if not results:
        return []
    beams = results  # of the sentences that are still decoded
    state = State(model, source, source_pos, rules, cache, bos_id)
    live = np.zeros((len(beams), 1))  # log-probabilities (sentences, width)
    tokens = state.first
    history = np.zeros((len(beams), 1, 0), dtype=np.int64)  # (sentences, width, tokens so far)
    while True:
        values, ids = state.extend(tokens, 2 * beam_size)
        scores, origin, token = _best_extensions(live, values, ids, 2 * beam_size)
        ends = (token == eos_id) | np.array([[beam.limit == state.step] for beam in beams])
        _finish(beams, scores, origin, token, ends, history, eos_id)
        scores, kept = _survivors(np.where(ends, -np.inf, scores), beam_size)
        done = [beam.done(state.step, best) for beam, best in zip(beams, scores[:, 0].tolist(), strict=True)]
        if all(done):
            return [beam.best(n_best) for beam in results]
        going = np.flatnonzero(~np.array(done))
        beams = [beams[i] for i in going]
        width = int(np.isfinite(scores[going]).sum(1).max())  # as many rows as the liveliest sentence needs
        kept = kept[going, :width]
        origin, token = np.take_along_axis(origin[going], kept, 1), np.take_along_axis(token[going], kept, 1)
        state.select(going, (going[:, None] * live.shape[1] + origin).ravel())
        history = np.concatenate([history[going[:, None], origin], token[:, :, None]], 2)
        live, tokens = scores[going, :width], token.ravel()


class Beams:
    """The finished hypotheses of one sentence and the rule that says when they suffice."""

    def __init__(self, limit: int, size: int, length_penalty: float, early_stopping: EarlyStopping) -> None:
        self.limit, self.size, self.alpha, self.early_stopping = limit, size, length_penalty, early_stopping
        self.finished: list[Hypothesis] = []  # best first

    def add(self, tokens: list[int], log_prob: float, length: int) -> None:
        """Keep a hypothesis if it is among the ``size`` best; among equals the first to come stays first."""
        self.finished.append(Hypothesis(tokens, normalised(log_prob, length, self.alpha), log_prob))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.size :]

    def done(self, length: int, best_live: float) -> bool:
        """Whether to stop at this length, where the best live hypothesis has this log-probability."""
        if best_live == -np.inf:
            return True
        if len(self.finished) < self.size:
            return False
        if self.early_stopping is True:
            return True
        if self.early_stopping == "never" and self.alpha > 0:
            length = self.limit
        return normalised(best_live, length, self.alpha) <= self.finished[-1].score

    def best(self, n: int) -> list[Hypothesis]:
        return self.finished[:n]


def _best_extensions(live: Floats, values: Floats, ids: Ints, k: int) -> tuple[Floats, Ints, Ints]:
    """The k best extensions of each sentence: log-probability, the beam they extend, their last token; (B, <=k)."""
    sentences, width = live.shape
    per_row = values.shape[1]
    total = (live[:, :, None] + values.reshape(sentences, width, per_row)).reshape(sentences, -1)
    order = np.argsort(-total, axis=1, kind="stable")[:, :k]
    token = np.take_along_axis(ids.reshape(sentences, -1), order, 1)
    return np.take_along_axis(total, order, 1), order // per_row, token


def _finish(
    beams: list[Beams], scores: Floats, origin: Ints, token: Ints, ends: Bools, history: Ints, eos_id: int
) -> None:
    """Hand over the extensions that end among the first ``size``."""
    length = history.shape[2] + 1
    top = np.arange(scores.shape[1]) < beams[0].size
    for i, j in np.argwhere(ends & top & np.isfinite(scores)).tolist():
        last = [] if token[i, j] == eos_id else [int(token[i, j])]
        beams[i].add(history[i, origin[i, j]].tolist() + last, float(scores[i, j]), length)


def _survivors(scores: Floats, size: int) -> tuple[Floats, Ints]:
    """The best ``size`` of extensions of which those that ended are at -inf: log-probabilities and where they stood."""
    kept = np.argsort(-scores, axis=1, kind="stable")[:, :size]
    return np.take_along_axis(scores, kept, 1), kept
