import math
from collections import Counter

import numpy as np
import pytest
from sacrebleu import corpus_bleu, corpus_chrf

from polyhead.evaluate import baselines
from polyhead.evaluate.metrics import KNOWN_METRICS

SOURCES = ["Der Hund bellt 3 Mal .", "Berlin , 4 Mai", "Eine Katze"]
REFERENCES = ["The dog barks 3 times .", "Berlin , 4 May", "A cat"]
CHINESE = ["狗叫了三次。", "柏林，五月四日", "一只猫"]


def test_class_baselines():
    labels, true_ids = ["no", "perhaps", "yes"], [0, 0, 0, 0, 1, 2, 2]
    result = baselines.class_baselines({"no": 3, "perhaps": 9, "yes": 5}, true_ids, labels)
    assert result["accuracy"] == baselines.Baseline(1 / 7, "majority class", "perhaps")
    precision, recall = 1 / 7, 1.0
    assert result["f1"].value == pytest.approx((0 + 2 * precision * recall / (precision + recall) + 0) / 3)
    assert result["mcc"].value == 0.0
    shares = {0: 4 / 20, 1: 10 / 20, 2: 6 / 20}  # one more text of each class is assumed
    nats = [-math.log(shares[number]) for number in true_ids]
    assert result["loss"].value == pytest.approx(sum(nats) / len(nats))
    result = baselines.class_baselines({"no": 1, "yes": 2}, [0, 1, 1, 1], ["no", "yes"])
    assert result["f1_yes"].value == pytest.approx(2 * 0.75 / 1.75)
    assert result["accuracy"].value == 0.75


@pytest.mark.parametrize(("references", "lang", "tokens"), [(REFERENCES, "en", "13a"), (CHINESE, "zh", "zh")])
def test_translation_baseline_is_the_better_guess(references, lang, tokens):
    frequent = references[0]
    result = baselines.translation_baselines(SOURCES, references, lang, frequent)
    for name, score in {
        "bleu": lambda outputs: corpus_bleu(outputs, [references], tokenize=tokens).score,
        "chrf": lambda outputs: corpus_chrf(outputs, [references]).score,
    }.items():
        copied_score, frequent_score = score(SOURCES), score([frequent] * 3)
        assert result[name].value == pytest.approx(max(copied_score, frequent_score))
        guess = "copied source" if copied_score >= frequent_score else "most frequent target"
        assert result[name].guess == guess
        without_frequent = baselines.translation_baselines(SOURCES, references, lang)
        assert without_frequent[name] == baselines.Baseline(pytest.approx(copied_score), "copied source")


def test_better_is_lower_or_higher_by_metric():
    assert KNOWN_METRICS["ppl"].is_better(3.0, 4.0) and not KNOWN_METRICS["ppl"].is_better(4.0, 4.0)
    assert KNOWN_METRICS["bleu"].is_better(4.0, 3.0) and not KNOWN_METRICS["bleu"].is_better(3.0, 4.0)


def test_copied_source_equal_to_reference_is_no_baseline():
    assert baselines.translation_baselines(REFERENCES, REFERENCES) == {}
    result = baselines.translation_baselines(REFERENCES, REFERENCES, frequent_target="A cat")
    assert result["bleu"].guess == "most frequent target"


def test_unigram_perplexity_counts_one_more_of_each_token(monkeypatch):
    train, text, size = [0, 1, 1, 3, 3, 3], [1, 3, 3, 2], 5
    times = Counter(train)
    nats = -sum(math.log((times[token] + 1) / (len(train) + size)) for token in text)
    arrays = [baselines.count_tokens([np.array(ids)], size) for ids in (train, text)]
    result = baselines.unigram_baselines(*arrays, n_words=2, n_chars=9)
    assert result["loss"].value == pytest.approx(nats / 4)
    assert result["ppl"].value == pytest.approx(math.exp(nats / 4))
    assert result["word_ppl"].value == pytest.approx(math.exp(nats / 2))
    assert result["bits_per_char"].value == pytest.approx(nats / 9 / math.log(2))
    assert result["accuracy"] == baselines.Baseline(0.5, "most frequent token")  # two of four are token 3
    assert baselines.unigram_baselines(arrays[0], np.zeros(5, dtype=np.int64)) == {}
    # in chunks, without ignored ones
    monkeypatch.setattr("polyhead.evaluate.baselines._CHUNK_SIZE", 3)
    ids = np.array([1, -100, 2, 2, 0, -100, 2, 1])
    assert baselines.count_tokens([ids, np.array([3], dtype=np.int32)], 5).tolist() == [1, 2, 3, 1, 0]


@pytest.mark.parametrize(
    ("name", "value", "baseline", "better"),
    [
        ("bleu", 0.08, 0.3, False),
        ("bleu", 0.3, 0.3, False),
        ("bleu", 0.31, 0.3, True),
        ("ppl", 9.0, 10.0, True),
        ("bits_per_char", 2.0, 2.0, False),
        ("accuracy", 1.0, 1.0, True),  # nothing is better
        ("chrf", 100.0, 100.0, True),
        ("mcc", 0.0, 0.0, False),
    ],
)
def test_beats_baseline_by_direction_of_metric(name, value, baseline, better):
    assert baselines.beats_baseline(name, value, baselines.Baseline(baseline, "unigram")) is better


def test_multi_label_baselines():
    labels, counts = ["a", "b", "c", "d"], [10, 45, 30, 3]  # of 100 texts
    training = np.random.default_rng(0).random((100, 4)) < np.array(counts) / 100
    totals = dict(zip(labels, training.sum(0).tolist(), strict=True))
    order = sorted(range(4), key=lambda i: -totals[labels[i]])

    def micro_f1(n: int) -> float:
        right = sum(totals[labels[i]] for i in order[:n])
        return 2 * right / (100 * n + sum(totals.values()))

    n = max(range(1, 5), key=micro_f1)
    result = baselines.multi_label_baselines(
        baselines.TrainingCounts(labels=totals, texts=100), training, labels
    )
    assert result["micro_f1"].value == pytest.approx(micro_f1(n))
    assert result["micro_f1"].detail == ", ".join(labels[i] for i in order[:n])
    assert 1 < n < 4
