"""Tests of evaluate/bootstrap.py against sacreBLEU and against resampling written out."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from polyhead.core.errors import UserError
from polyhead.evaluate.metrics import compare_scores, evaluate_translations

WORDS = ["the", "a", "dog", "cat", "red", "two", "runs", "sleeps", "near", "house", "with", "of", "and"]
NAMES = {"bleu": BLEU, "chrf": CHRF, "ter": TER}


def make_texts(noise, n=50):
    """Two references of each text, and an output in which about this share of the words differs."""
    rng = np.random.default_rng(3)
    references, outputs = [], []
    for _ in range(n):
        words = [WORDS[i] for i in rng.integers(0, len(WORDS), rng.integers(4, 15))]
        other = [word for word in words if rng.random() > 0.2] or words
        changes = [(word, rng.random(), WORDS[rng.integers(0, len(WORDS))]) for word in words]
        outputs.append(" ".join(word if u > noise else other for word, u, other in changes))
        references.append([" ".join(words), " ".join(other)])
    return references, outputs


REFERENCES, GOOD = make_texts(0.15)
BAD = make_texts(0.25)[1]
STREAMS = [list(stream) for stream in zip(*REFERENCES, strict=True)]
SCORES = [
    {
        score.name: score
        for score in evaluate_translations(outputs, REFERENCES, "en", list(NAMES), n_resamples=1000).scores
    }
    for outputs in (GOOD, BAD)
]


@pytest.mark.parametrize("name", NAMES)
def test_intervals_and_signatures_are_sacrebleus(name):
    metric, score = NAMES[name](), SCORES[1][name]
    expected = metric.corpus_score(BAD, STREAMS, n_bootstrap=1000)
    assert score.value == expected.score
    assert score.margin == pytest.approx(expected._ci, abs=1e-4) and score.margin > 0.1
    assert np.mean(score.resamples) == pytest.approx(expected._mean, abs=1e-4)
    assert score.signature == str(metric.get_signature())
    assert score.signature.startswith("nrefs:2|bs:1000|seed:12345|")


@pytest.mark.parametrize("name", NAMES)
def test_paired_bootstrap_is_that_written_out(name):
    """Scores of resampled texts, drawn and scored one corpus at a time (Koehn, 2004)."""
    rng, differences = np.random.default_rng(12345), []
    for _ in range(1000):
        rows = rng.choice(len(GOOD), len(GOOD))
        if len(differences) < 20:  # the others are checked through their sums, below
            streams = [[stream[row] for row in rows] for stream in STREAMS]
            good, bad = (
                NAMES[name]().corpus_score([texts[row] for row in rows], streams).score
                for texts in (GOOD, BAD)
            )
            differences.append(good - bad)
    good, bad = (scores[name] for scores in SCORES)
    resampled = np.array(good.resamples) - np.array(bad.resamples)
    assert resampled[:20] == pytest.approx(differences, abs=1e-6)
    found, ordered = compare_scores(good, bad), np.sort(resampled)
    assert found.value == pytest.approx(good.value - bad.value)
    assert (found.low, found.high) == (ordered[25], ordered[-26])
    beyond = np.abs(resampled - resampled.mean()) > abs(found.value)
    assert found.p == (beyond.sum() + 1) / 1001
    assert compare_scores(bad, good).value == -found.value and compare_scores(good, good).p == 1.0
    # sacreBLEU counts the differences that are larger, not those that are smaller: p is about half of it
    systems = [("good", GOOD), ("bad", BAD)]
    _, (base, system) = PairedTest(systems, {name: NAMES[name]()}, STREAMS, "bs")()[1].values()
    assert system.ci == pytest.approx(bad.margin, abs=1e-4) and base.ci == pytest.approx(
        good.margin, abs=1e-4
    )
    assert system.p_value <= found.p + 2e-3


def test_only_scores_of_the_same_kind_are_compared():
    good, plain = SCORES[0], evaluate_translations(GOOD, REFERENCES, "en", ["bleu"]).scores[0]
    for pair in ((good["bleu"], good["chrf"]), (good["bleu"], plain), (plain, plain)):
        with pytest.raises(UserError, match="compare_scores expects two scores of one metric with equally"):
            compare_scores(*pair)
