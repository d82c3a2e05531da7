"""Logit processors, the k largest logits, and sampling that does not depend on the rest of the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from polyhead.core.array_types import Bools, Floats
from polyhead.core.errors import check_int
from polyhead.kernels.linear import max_and_logsumexp, topk_log_softmax, topk_rows

_CHUNK_LOGITS = 2**19  # logits per chunk: they stay in the processor's cache


def topk_log_probs(
    logits: Tensor,
    k: int,
    banned_ids: Sequence[int] = (),
    forced_ids: Sequence[Sequence[int]] = (),
    repeated_ids: Sequence[Sequence[int]] = (),
    masked_logits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The k best next tokens of each row, (N, V) -> log-probabilities (N, k), best first, and ids (N, k).

    ``banned_ids`` are banned in all rows, ``repeated_ids`` in each row; ``masked_logits`` (N, V) are the
    logits with -inf at further banned tokens. ``forced_ids`` are the only tokens of a row and override every
    ban; without any, all are allowed. Banned tokens get -inf; the others keep their probability under the
    model. At most V tokens are returned. Logits may have any precision; probabilities are fp32.
    """
    if not any(forced_ids) and masked_logits is None and not any(repeated_ids):
        found = topk_log_softmax(logits, min(k, logits.size(1)), banned_ids)
        if found is not None:
            return found
    rows = max(1, _CHUNK_LOGITS // logits.size(1))
    if len(logits) > rows:
        parts = logits.split(rows)
        shapes = [None] * len(parts) if masked_logits is None else masked_logits.split(rows)
        results = [
            topk_log_probs(
                part,
                k,
                banned_ids,
                forced_ids[rows * i : rows * (i + 1)],
                repeated_ids[rows * i : rows * (i + 1)],
                shape,
            )
            for i, (part, shape) in enumerate(zip(parts, shapes, strict=True))
        ]
        return torch.cat([values for values, _ in results]), torch.cat([ids for _, ids in results])
    x = logits.float()
    max_logit, log_sum = max_and_logsumexp(x)
    allowed_logits = ban_tokens(x if masked_logits is None else masked_logits.float(), repeated_ids)
    if any(forced_ids):
        banned_index = torch.tensor(list(banned_ids), dtype=torch.int64, device=x.device)
        allowed_logits, banned_ids = allowed_logits.index_fill(1, banned_index, NEG_INF), ()
        allowed_logits = force_tokens(allowed_logits, forced_ids, x)
    values, ids = topk_rows(allowed_logits, min(k, x.size(1)), banned_ids)
    return values - max_logit - log_sum, ids


NEG_INF = float("-inf")
NUM_CANDIDATES = 64  # number of most likely tokens considered first
_MIN_TEMPERATURE = 1e-5  # a lower temperature counts as 0: logits divided by it are not finite


@dataclass(frozen=True)
class Sampling:
    """Sampling settings, with the ranges of ``GenerationConfig``.

    Temperature 0 is greedy; then only the logit bias and the penalties have an effect.

    Order of application: logit bias, repetition penalty, frequency and presence penalty, min_new_tokens,
    no_repeat_ngram_size, temperature, top_k, top_p, min_p. If every token would repeat an n-gram, the text
    ends with the first of ``eos_ids``.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # 0: n-grams may repeat
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, number added to its logit), each token once
    min_new_tokens: int = 0  # no end token before

    def __post_init__(self) -> None:
        if self.temperature < _MIN_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)

    def apply(
        self,
        logits: Tensor,
        input_ids: Sequence[Sequence[int]],
        eos_ids: Sequence[int] = (0,),
        output_ids: Sequence[Sequence[int]] = (),
    ) -> Tensor:
        """All steps: (N, V) logits and the tokens of each row so far -> (N, V), excluded tokens at -inf.

        ``output_ids`` are the generated tokens of each row, without its prompt.
        """
        logits = self._apply_penalties(logits, input_ids, eos_ids, output_ids)
        if self.temperature == 0:
            return logits
        if not self._needs_truncation:
            return logits / self.temperature
        candidates, ids = self._top_candidates(logits)
        # excluded candidates may have any column, so the maximum counts
        full_logits = torch.full_like(logits, NEG_INF)
        return full_logits.scatter_reduce_(1, ids.to(logits.device), candidates.to(logits), "amax")

    def sample(
        self,
        logits: Tensor,
        input_ids: Sequence[Sequence[int]],
        uniforms: Sequence[float],
        eos_ids: Sequence[int] = (0,),
        output_ids: Sequence[Sequence[int]] = (),
    ) -> list[int]:
        """Sample one token per row of (N, V) by a number in [0, 1) per row; argmax at temperature 0."""
        logits = self._apply_penalties(logits, input_ids, eos_ids, output_ids)
        if self.temperature == 0:
            likeliest: list[int] = topk_rows(logits, 1)[1][:, 0].tolist()
            return likeliest
        if not self._needs_truncation:
            return sample_inverse_cdf(logits / self.temperature, uniforms)
        candidates, ids = self._top_candidates(logits)
        return [row[i] for row, i in zip(ids.tolist(), sample_inverse_cdf(candidates, uniforms), strict=True)]

    @property
    def _needs_truncation(self) -> bool:
        """Whether top_k, top_p or min_p excludes tokens."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @cached_property
    def _bias_tensors(self) -> tuple[Tensor, Tensor]:
        """The tokens of the logit bias, and the bias of each."""
        tokens, biases = zip(*self.logit_bias, strict=True)
        return torch.tensor(tokens), torch.tensor(biases, dtype=torch.float32)

    def _apply_penalties(
        self,
        logits: Tensor,
        input_ids: Sequence[Sequence[int]],
        eos_ids: Sequence[int],
        output_ids: Sequence[Sequence[int]],
    ) -> Tensor:
        logits = logits.float()
        if self.logit_bias:
            logits = apply_logit_bias(logits, *self._bias_tensors)
        if self.repetition_penalty != 1:
            logits = apply_repetition_penalty(logits, input_ids, self.repetition_penalty)
        if self.frequency_penalty or self.presence_penalty:
            logits = apply_frequency_presence_penalties(
                logits, output_ids, self.frequency_penalty, self.presence_penalty
            )
        if self.min_new_tokens:
            too_short = [len(tokens) < self.min_new_tokens for tokens in output_ids]
            logits = ban_tokens(logits, [eos_ids if short else () for short in too_short])
        if n := self.no_repeat_ngram_size:
            logits = ban_tokens(logits, [banned_ngrams(text, n) for text in input_ids])
            logits = force_eos(logits, eos_ids[0]) if eos_ids else logits
        return logits

    def _top_candidates(self, logits: Tensor, k: int = NUM_CANDIDATES) -> tuple[Tensor, Tensor]:
        """All candidates of (N, V): logits (N, K), -inf at excluded ones, and ids (N, K) in ascending order.

        Only the k most likely tokens are considered, and eight times as many if the last of them is not
        excluded.
        """
        k, row = min(max(k, self.top_k), logits.size(1)), np.arange(len(logits))[:, None]
        values, tokens = topk_rows(logits, k)
        ids, scores = tokens.cpu().numpy(), (values.cpu().numpy() / self.temperature).astype(np.float64)
        by_id = ids.argsort(1)
        scores, ids = scores[row, by_id], ids[row, by_id]
        best_first = (-scores).argsort(1, kind="stable")  # ties: the lower id first
        ranked = scores[row, best_first]
        edge = ranked == (
            ranked[:, -1:] if k < logits.size(1) else np.nan
        )  # may tie with tokens beyond the k
        with np.errstate(invalid="ignore"):  # of a row in which every token is banned
            for mask in self._candidate_masks(ranked, logits):
                if (mask & edge).any():
                    return self._top_candidates(logits, 8 * k)
        scores[row, best_first] = np.where(mask, ranked, NEG_INF)
        return torch.from_numpy(scores), torch.from_numpy(ids)

    def _candidate_masks(self, sorted_logits: Floats, logits: Tensor) -> Iterator[Bools]:
        """Masks (N, K), best first, of the candidates that remain after each step."""
        mask = top_k(sorted_logits, self.top_k) if self.top_k else sorted_logits > NEG_INF
        if self.top_k:
            yield mask
        if self.top_p < 1:
            weights = np.exp(sorted_logits - sorted_logits[:, :1]) * mask
            if self.top_k:
                total = weights.sum(1, keepdims=True)
            else:
                total = max_and_logsumexp(logits / self.temperature)[1].exp().cpu().numpy()
            mask &= top_p(weights / total, self.top_p)
            yield mask
        if self.min_p:
            yield mask & min_p(sorted_logits, self.min_p)


def apply_repetition_penalty(logits: Tensor, input_ids: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Penalize earlier tokens: divide positive logits, multiply negative ones (Keskar et al., 2019)."""
    logits = logits.clone()
    for row, tokens in enumerate(input_ids):
        index = torch.tensor(sorted(set(tokens)), dtype=torch.int64, device=logits.device)
        values = logits[row, index]
        logits[row, index] = torch.where(values > 0, values / penalty, values * penalty)
    return logits


def apply_frequency_presence_penalties(
    logits: Tensor, output_ids: Sequence[Sequence[int]], frequency_penalty: float, presence_penalty: float
) -> Tensor:
    """logit - count * frequency - presence for each generated token, as OpenAI defines both penalties."""
    assert len(output_ids) == len(logits), "expected the previous tokens of every row"
    counts = [Counter(tokens) for tokens in output_ids]
    sizes = [len(counter) for counter in counts]
    if not any(sizes):
        return logits
    # with arrays: a list of all indices takes four times as long
    rows = np.repeat(np.arange(len(output_ids)), sizes)
    tokens = np.fromiter(chain(*counts), np.int64, sum(sizes))
    times = np.fromiter(chain(*(counter.values() for counter in counts)), np.float64, sum(sizes))
    penalties = torch.from_numpy(times * frequency_penalty + presence_penalty).to(logits)
    indices = torch.from_numpy(rows).to(penalties.device), torch.from_numpy(tokens).to(penalties.device)
    return logits.index_put(indices, -penalties, accumulate=True)


def apply_logit_bias(logits: Tensor, tokens: Tensor, biases: Tensor) -> Tensor:
    """Add the biases (K,) of the tokens (K,) to the logits (N, V) -> (N, V); -inf stays -inf."""
    return logits.index_add(1, tokens.to(logits.device), biases.to(logits).expand(len(logits), -1))


def top_k(sorted_logits: Floats, k: int) -> Bools:
    """The k most likely tokens and ties with the last (Fan et al., 2018): of logits (N, K), best first."""
    return sorted_logits >= sorted_logits[:, min(k, sorted_logits.shape[1]) - 1, None]


def top_p(probabilities: Floats, p: float) -> Bools:
    """The smallest set of most likely tokens with total probability of at least p (Holtzman et al., 2019)."""
    return probabilities.cumsum(1) - probabilities < p


def min_p(sorted_logits: Floats, p: float) -> Bools:
    """Tokens at least p times as likely as the best (Nguyen et al., 2024): of logits (N, K), best first."""
    return sorted_logits >= sorted_logits[:, :1] + np.log(p)


class RandomStreams:
    """One random stream per row, so that the samples of a row do not depend on the batch.

    ``row_offset`` is the number of the first row.
    """

    def __init__(self, seed: int, rows: int, row_offset: int = 0) -> None:
        check_int("seed", seed, 0)
        self.streams = [np.random.Generator(np.random.PCG64([seed, row_offset + row])) for row in range(rows)]

    def draw_uniforms(self, rows: Sequence[int]) -> list[float]:
        """The next number in [0, 1) of each of these streams."""
        return [self.streams[row].random() for row in rows]

    def sample(self, logits: Tensor, rows: Sequence[int]) -> list[int]:
        """Sample one token for each row of (N, V); row i uses stream ``rows[i]``."""
        return sample_inverse_cdf(logits, self.draw_uniforms(rows))


def sample_inverse_cdf(logits: Tensor, uniforms: Sequence[float]) -> list[int]:
    """The token of each row of (N, V) at which the cumulative probability exceeds a number in [0, 1)."""
    cumulated = logits.double().softmax(-1).cumsum(-1)
    # below the rounded total, and never a token of probability 0
    thresholds = torch.from_numpy(np.array(uniforms)[:, None]).to(logits.device) * cumulated[:, -1:]
    tokens: list[int] = torch.searchsorted(cumulated, thresholds, right=True).flatten().tolist()
    return [min(token, logits.size(1) - 1) for token in tokens]


def banned_ngrams(text: Sequence[int], n: int) -> list[int]:
    """Next tokens that would repeat an n-gram of a text (Paulus et al., 2017, sec. 2.5); none for n = 0."""
    if n == 0 or len(text) < n:
        return []
    if n == 1:
        return list(text)
    ids = np.array(text)
    contexts, next_ids = sliding_window_view(ids[:-1], n - 1), ids[n - 1 :]
    repeats: list[int] = next_ids[(contexts == ids[1 - n :]).all(1)].tolist()
    return repeats


def force_eos(logits: Tensor, eos_id: int) -> Tensor:
    """(N, V) logits that allow only ``eos_id`` in rows in which every token is banned."""
    is_stuck = logits.isneginf().all(1)
    if not is_stuck.any():
        return logits
    logits = logits.clone()
    logits[is_stuck, eos_id] = 0.0
    return logits


def ban_tokens(logits: Tensor, banned_ids: Sequence[Sequence[int]]) -> Tensor:
    """(N, V) logits with -inf at the banned tokens of each row."""
    positions = [(row, token) for row, tokens in enumerate(banned_ids) for token in tokens]
    if not positions:
        return logits
    rows, columns = torch.tensor(positions, device=logits.device).unbind(1)
    return logits.index_put((rows, columns), logits.new_tensor(float("-inf")))


def force_tokens(logits: Tensor, forced_ids: Sequence[Sequence[int]], unbanned_logits: Tensor) -> Tensor:
    """(N, V) logits with -inf at all but the forced tokens of each row that has any; these are not banned."""
    positions = [(row, token) for row, tokens in enumerate(forced_ids) for token in tokens]
    rows, columns = torch.tensor(positions, device=logits.device).unbind(1)
    logits = logits.index_fill(0, rows.unique(), float("-inf"))
    return logits.index_put((rows, columns), unbanned_logits[rows, columns])
