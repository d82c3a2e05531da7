"""Scores of heads on attention maps that are given, against sums written out token by token."""

import math

import numpy as np
import pytest

from polyhead.core.errors import UserError
from polyhead.introspect.attention_map import AttentionMap
from polyhead.introspect.head_scores import BROAD, OTHER, is_punctuation, learn_lexicon, survey_heads

TOKENS = ["<s>", " the", " cat", ",", " the", " dog", "."]
SOURCE, TARGET = ["a", "dog", ".", "■ </s>"], ["ein", "hund", ".", "■ </s>"]
LEXICON = {("a", "ein"): 0.9, ("dog", "hund"): 0.6, ("a", "hund"): 0.3, (".", "."): 0.4, ("", "."): 0.5}
ALIGNMENT = {0: [0], 1: [1]}  # "." is more probable of nothing, the end mark is not in the lexicon
# the keys that count for each query, by hand; a query is left out if none or all visible keys count
CAUSAL = {
    "previous": {t: [t - 1] for t in range(1, 7)},
    "same": {1: [1], 2: [2], 3: [3], 4: [1, 4], 5: [5], 6: [6]},
    "first": {t: [0] for t in range(1, 7)},
    "induction": {4: [2]},
    "punctuation": {4: [3], 5: [3], 6: [3, 6]},
}
CAUSAL["punctuation"][3] = [3]


def make_map(rng, shape, kind="self-attention", *, is_causal=True, tokens=(TOKENS, TOKENS)):
    weights = rng.dirichlet(np.full(shape[1], 0.4), size=(2, 3, shape[0]))
    if is_causal:
        weights = np.tril(weights) / np.tril(weights).sum(-1, keepdims=True)
    return AttentionMap(*tokens, weights, kind)


def mean_weight(weights, keys_of):
    return sum(weights[t, s] for t, keys in keys_of.items() for s in keys) / len(keys_of)


@pytest.mark.parametrize("kind", ["causal", "bidirectional", "cross"])
def test_scores_are_sums_of_weights(kind):
    rng = np.random.default_rng(0)
    if kind == "cross":
        counted = {
            "alignment": ALIGNMENT,
            "first": {t: [0] for t in range(4)},
            "punctuation": {t: [2, 3] for t in range(4)},
        }
        attention = make_map(rng, (4, 4), "cross-attention", is_causal=False, tokens=(SOURCE, TARGET))
    else:
        counted = dict(CAUSAL)
        attention = make_map(rng, (7, 7), is_causal=kind == "causal")
    if kind == "bidirectional":
        counted["same"] = {0: [0], **CAUSAL["same"], 1: [1, 4]}
        counted["first"] = {t: [0] for t in range(7)}
        counted["punctuation"] = {t: [3, 6] for t in range(7)}
    result = survey_heads(lambda text: {"self": attention}, [("",)], LEXICON)["self"]
    assert set(result.values) == {*counted, "entropy"}
    n_visible = [
        t + 1 if kind == "causal" else attention.weights.shape[-1] for t in range(attention.weights.shape[2])
    ]
    for layer, head in np.ndindex(2, 3):
        weights = attention.weights[layer, head]
        for name, keys_of in counted.items():
            chance = sum(len(keys) / n_visible[t] for t, keys in keys_of.items()) / len(keys_of)
            assert result.values[name][layer, head] == pytest.approx(mean_weight(weights, keys_of)), name
            assert result.chances[name][layer, head] == pytest.approx(chance), name
        rows = range(kind == "causal", len(weights))
        entropy = [-sum(w * math.log(w) for w in weights[t] if w) for t in rows]
        assert result.values["entropy"][layer, head] == pytest.approx(np.mean(entropy))
        assert result.chances["entropy"][layer, head] == pytest.approx(
            np.mean([math.log(n_visible[t]) for t in rows])
        )


def test_scores_weigh_every_query_of_all_texts_alike():
    rng = np.random.default_rng(1)
    maps = {n: make_map(rng, (n, n), tokens=(TOKENS[:n], TOKENS[:n])) for n in (3, 7)}
    result = survey_heads(lambda text: {"self": maps[len(text[0])]}, [("abc",), ("abcdefg",)], {})["self"]
    rows = [m.weights[1, 2, t, t - 1] for m in maps.values() for t in range(1, m.weights.shape[-1])]
    assert result.values["previous"][1, 2] == pytest.approx(np.mean(rows))
    assert result.n_texts == 2


def pure_heads(tokens):
    """One layer with a head of each kind, 0.8 of its weight on a key that counts; then BROAD and OTHER."""
    n = len(tokens)
    keys = {
        "previous": [max(t - 1, 0) for t in range(n)],
        "same": [*range(n)],
        "first": [0] * n,
        "induction": [2 if t == 4 else t for t in range(n)],
        "punctuation": [3 if t >= 3 else t for t in range(n)],
    }
    equal = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    two_back = np.eye(n)[[max(t - 2, 0) for t in range(n)]] * (np.arange(n) % 3 == 2)[:, None]
    heads = [0.8 * np.eye(n)[keys[name]] + 0.2 * equal for name in keys]
    heads += [equal, np.where(two_back.any(1, keepdims=True), 0.7 * two_back + 0.3 * equal, equal)]
    return AttentionMap(tokens, tokens, np.array([heads]), "self-attention"), [*keys, BROAD, OTHER]


def test_pure_heads_are_of_their_kind():
    attention, kinds = pure_heads(TOKENS)
    # with the same text without its pattern before it, the typical text is the one with the pattern
    blurred = attention._replace(weights=np.tile(attention.weights[:, 5:6], (1, 7, 1, 1)))
    texts = {"blurred": blurred, "pure": attention}
    result = survey_heads(lambda text: {"self": texts[text[0]]}, [("blurred",), ("pure",)], {}, 2)["self"]
    alone = survey_heads(lambda text: {"self": attention}, [("pure",)], {})["self"]
    assert alone.kinds == [kinds]
    assert result.kinds[0][:3] == kinds[:3]
    assert all(one is attention for one in result.typical[0][:3])
    with pytest.raises(UserError, match="no layer has attention"):
        survey_heads(lambda text: {}, [("a",)], {})


def test_texts_that_are_too_long_are_left_out():
    attention, _ = pure_heads(TOKENS)

    def read(text):
        if text[0] == "long":
            raise UserError("too long")
        return {"self": attention}

    assert survey_heads(read, [("long",), ("a",), ("b",), ("c",)], {}, 2)["self"].n_texts == 2


def test_lexicon_aligns_tokens_that_occur_together():
    lexicon = learn_lexicon(
        [["the", "dog"], ["the", "cat"], ["the"]] * 5, [["der", "hund"], ["die", "katze"], ["der"]] * 5
    )
    assert lexicon["dog", "hund"] > lexicon["the", "hund"]
    assert lexicon["the", "der"] > 0.5
    assert max(lexicon, key=lambda pair: lexicon[pair] * (pair[1] == "katze"))[0] == "cat"


@pytest.mark.parametrize(
    ("token", "expected"),
    [(" ,", True), ("。", True), ("■ </s>", True), ("[SEP]", False), (" a.", False), (" ", False)],
)
def test_punctuation(token, expected):
    assert is_punctuation(token) == expected
