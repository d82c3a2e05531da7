"""Scores of attention heads over many texts: how much of their weight goes to keys of each kind."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from polyhead.core.array_types import Bools, Floats
from polyhead.core.errors import UserError
from polyhead.generation.shortlist.shortlist import train_ibm_model1
from polyhead.introspect.attention_map import AttentionMap, layer_numbers
from polyhead.tokenizers.display import END_MARK

PairProbabilities = Mapping[tuple[str, str], float]
"""Source and target token -> probability of the target token."""
ReadMaps = Callable[[Sequence[str]], Mapping[str, AttentionMap]]
"""One text, or a text and its target -> the attention maps by kind."""
BROAD, OTHER = "broad", "other"  # kinds of heads that have none of the scores
N_TEXTS = 200
MIN_EXCESS = 0.2  # of the weight, beyond what equal weights would give, for a head to be of a kind
MIN_BROAD = 0.9  # of the entropy of equal weights
_TYPICAL_TOKENS, _TYPICAL_ROWS = 24, 3  # most tokens and fewest scored queries of a typical text
_VALUE, _CHANCE, _COUNT = range(3)  # sums of one text over its queries


class HeadSurvey(NamedTuple):
    """All heads of one kind of attention; arrays by name of a score are (layers, heads), or NaN."""

    layers: list[int]
    values: dict[str, Floats]  # mean weight on the keys that count; "entropy" in nats
    chances: dict[str, Floats]  # the same of equal weights on all visible keys
    kinds: list[list[str]]  # a name of a score, BROAD or OTHER
    typical: list[list[AttentionMap]]  # the map of the text in which the head shows its kind best
    n_texts: int


def mark_keys(attention: AttentionMap, lexicon: PairProbabilities) -> dict[str, Bools]:
    """The keys that count for each query, by score: (T, S) booleans.

    The query of a self-attention is the token that is read, that of a cross-attention the one written.
    """
    keys = np.array(attention.source_tokens)
    same, itself = keys[:, None] == keys, np.eye(len(keys), dtype=bool)
    followed = np.roll(np.tril(same, -1), 1, axis=1)  # Olsson et al., 2022; the last column is empty
    marks = {"previous": np.eye(len(keys), k=-1, dtype=bool), "same": same, "induction": followed & ~itself}
    if attention.kind == "cross-attention":
        written = attention.target_tokens
        table = np.array([[lexicon.get((key, token), 0.0) for key in (*keys, "")] for token in written])
        # rare tokens may have several that are equally probable
        marks = {"alignment": (table > 0.999 * table.max(1, keepdims=True))[:, :-1]}
    n_queries = len(next(iter(marks.values())))
    columns = {"first": np.arange(len(keys)) == 0, "punctuation": np.array([*map(is_punctuation, keys)])}
    return marks | {name: np.tile(column, (n_queries, 1)) for name, column in columns.items()}


def is_punctuation(token: str) -> bool:
    """Whether a token is an end mark or has nothing but punctuation."""
    text = token.strip(" ▁")
    return text.startswith(END_MARK) or (
        text != "" and all(unicodedata.category(character)[0] == "P" for character in text)
    )


def sum_scores(attention: AttentionMap, lexicon: PairProbabilities) -> Floats:
    """Sums over the queries of a text: (scores and entropy, value/chance/count, layers, heads).

    A query counts where equal weights would give some of their weight to the marked keys, but not all. A
    key is visible where any head of the layer gives it weight.
    """
    weights = torch.as_tensor(attention.weights).double().numpy()
    visible = (weights > 0).any(1, keepdims=True)
    n_visible = visible.sum(-1)
    log_weights = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    rows = []
    for marked in mark_keys(attention, lexicon).values():
        chance = (visible & marked).sum(-1) / n_visible
        rows.append(((weights * marked).sum(-1), chance, (chance > 0) & (chance < 1)))
    rows.append((-(weights * log_weights).sum(-1), np.log(n_visible), n_visible > 1))
    sums = [
        ((value * counts).sum(-1), (chance * counts).sum(-1), counts.sum(-1))
        for value, chance, counts in rows
    ]
    return np.array([np.broadcast_arrays(*one) for one in sums])


def survey_heads(
    read_maps: ReadMaps, texts: Iterable[Sequence[str]], lexicon: PairProbabilities, n_texts: int = N_TEXTS
) -> dict[str, HeadSurvey]:
    """Score all heads over the first ``n_texts`` texts that the model can read, by kind of attention."""
    readable: list[Sequence[str]] = []
    sums: dict[str, list[Floats]] = {}
    for text in texts:
        with suppress(UserError):  # longer than the model can read
            for name, attention in read_maps(text).items():
                sums.setdefault(name, []).append(sum_scores(attention, lexicon))
            readable.append(text)
        if len(readable) == n_texts:
            break
    if not sums:
        raise UserError("no layer has attention, or no text is short enough for the model")
    read_map = cache(lambda i: read_maps(readable[i]))

    def judge(name: str) -> HeadSurvey:
        return judge_heads(np.stack(sums[name]), lambda i: read_map(i)[name])

    return {name: judge(name) for name in sums}


def judge_heads(sums: Floats, read_map: Callable[[int], AttentionMap]) -> HeadSurvey:
    """Scores, kinds and typical texts from the sums of each text."""
    first = read_map(0)
    names = [*mark_keys(first, {}), "entropy"]
    (values, chances), excess = _measure(sums.sum(0))
    of_texts, n_queries = np.stack([_measure(one)[1] for one in sums]), sums[:, -1, _COUNT, 0, 0]
    kinds, typical = (np.empty(excess.shape[1:], object) for _ in range(2))
    for head in np.ndindex(kinds.shape):
        scores, ratio = np.nan_to_num(excess[:-1, *head], nan=-1), excess[-1, *head]
        best = int(scores.argmax()) if scores.max() >= MIN_EXCESS else -1
        kinds[head] = names[best] if best >= 0 else BROAD if ratio >= MIN_BROAD else OTHER
        fit = of_texts[:, best, *head]
        fit = -abs(fit - ratio) if kinds[head] == OTHER else fit
        # short texts with several scored queries first, then the best of them
        is_clear = (n_queries <= _TYPICAL_TOKENS) & (sums[:, best, _COUNT, *head] >= _TYPICAL_ROWS)
        typical[head] = int(np.lexsort((n_queries, np.nan_to_num(fit, nan=-2).round(3), is_clear))[-1])
    value_of, chance_of = (dict(zip(names, one, strict=True)) for one in (values, chances))
    maps, layers = [[read_map(i) for i in row] for row in typical], layer_numbers(first, len(kinds))
    return HeadSurvey(layers, value_of, chance_of, kinds.tolist(), maps, len(sums))


def _measure(sums: Floats) -> tuple[tuple[Floats, Floats], Floats]:
    """Mean values and chances; and the excess of each score over its chance, of the entropy its share."""
    with np.errstate(invalid="ignore", divide="ignore"):
        values, chances = sums[:, _VALUE] / sums[:, _COUNT], sums[:, _CHANCE] / sums[:, _COUNT]
        excess = (values - chances) / (1 - chances)
        excess[-1] = values[-1] / chances[-1]
    return (values, chances), excess


def learn_lexicon(sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> dict[Any, float]:
    """Translation probabilities of tokens by IBM Model 1; the source token "" aligns with nothing."""
    numbers = {token: i for i, token in enumerate(sorted({t for side in (*sources, *targets) for t in side}))}
    source, target = ([[numbers[token] for token in text] for text in side] for side in (sources, targets))
    lexicon, names = train_ibm_model1(source, target, len(numbers)), [*numbers, ""]
    cells = zip(lexicon.source.tolist(), lexicon.target.tolist(), lexicon.probability.tolist(), strict=True)
    return {(names[key], names[token]): p for key, token, p in cells}
