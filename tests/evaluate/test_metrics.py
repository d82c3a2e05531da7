import json
from collections import Counter
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from polyhead.core.errors import UserError
from polyhead.evaluate.metrics import (
    KNOWN_METRICS,
    bleu_tokenizer,
    compare_scores,
    describe_tokenizer_mismatch,
    evaluate_translations,
    score_translations,
)

bleu, lowercase_bleu, chrf = (
    partial(score_translations, KNOWN_METRICS[name]) for name in ("bleu", "bleu-lc", "chrf")
)

ROWS = [json.loads(line) for line in Path(__file__).with_name("translations.jsonl").read_text().splitlines()]
TEXTS = {row["name"]: (row["outputs"], row["references"]) for row in ROWS}
ENGLISH, CHINESE, JAPANESE = TEXTS["english"], TEXTS["chinese"], TEXTS["japanese"]


@pytest.mark.parametrize("row", ROWS, ids=TEXTS)
def test_bleu_equals_sacrebleu_with_tokenizer_of_language(row):
    outputs, references, tokenizer = row["outputs"], row["references"], row["tokenizer"]
    expected = sacrebleu.corpus_bleu(outputs, [references], tokenize=tokenizer)
    metric = BLEU(tokenize=tokenizer)
    metric.corpus_score(outputs, [references])
    for language in row["languages"]:
        score = bleu(outputs, references, language)
        assert (score.name, score.value) == ("bleu", expected.score), language
        assert score.signature == str(metric.get_signature())
        assert f"tok:{tokenizer}" in score.signature


def test_lowercase_bleu_is_named():
    outputs, references = ["THE cat sat on a mat"], ["the cat sat on a mat"]
    score = lowercase_bleu(outputs, references)
    assert (score.name, round(score.value, 6)) == ("bleu-lc", 100)
    assert "case:lc" in score.signature
    assert bleu(outputs, references).value < 100


@pytest.mark.parametrize("texts", [ENGLISH, CHINESE, JAPANESE])
def test_chrf_is_that_of_sacrebleu(texts):
    score, metric = chrf(*texts), CHRF()
    assert score.value == metric.corpus_score(texts[0], [texts[1]]).score
    assert score.signature == str(metric.get_signature())


def f1_of_words(output, reference, overlap):
    """F1 of the words of two texts, whose common part is counted by ``overlap``."""
    common = overlap(output, reference)
    return 2 * common / (len(output) + len(reference))


def count_common(output, reference):
    return sum((Counter(output) & Counter(reference)).values())


def longest_common(output, reference):
    """Length of the longest common subsequence, by trying all subsequences of the output."""
    subsequences = (words for n in range(len(output) + 1) for words in combinations(output, n))
    return max(len(words) for words in subsequences if is_subsequence(words, reference))


def is_subsequence(words, sequence):
    rest = iter(sequence)
    return all(word in rest for word in words)


@pytest.mark.parametrize(
    ("lang", "output", "references"),
    [
        ("en", "the cat sat on a red mat", ["the red cat", "a cat sat on the mat"]),
        ("de", "Der Hund läuft über die Straße", ["der Hund läuft die Straße hinüber"]),
        ("ru", "кот сидит на окне", ["на окне сидит кот"]),
        ("zh", "一只狗在草地上", ["草地上有一只狗"]),
    ],
)
def test_rouge_counts_words_and_longest_subsequence(lang, output, references):
    split = list if lang == "zh" else str.split
    words, others = split(output.lower()), [split(text.lower()) for text in references]
    pairs = [list(pairwise(text)) for text in (words, *others)]
    expected = [
        max(f1_of_words(words, other, count_common) for other in others),
        max(f1_of_words(pairs[0], other, count_common) for other in pairs[1:]),
        max(f1_of_words(words, other, longest_common) for other in others),
    ]
    names = ["rouge-1", "rouge-2", "rouge-l"]
    scores = evaluate_translations([output, ""], [references, ["x"]], lang, names).scores
    assert [score.name for score in scores] == names
    assert [score.value for score in scores] == pytest.approx([50 * value for value in expected])


def test_rouge_of_english_stems_words():
    (score,) = evaluate_translations(["Dogs, barking!"], ["the dog barks"], metrics=["rouge-1"]).scores
    assert score.value == pytest.approx(80) and "tok:porter" in score.signature


def test_language_is_guessed_or_warned_of():
    """A tokenizer of words between spaces for a script that has none."""
    for texts in (texts for name, texts in TEXTS.items() if name not in ("english", "korean")):
        warning = describe_tokenizer_mismatch("vie_Latn", texts[1])
        assert "no spaces between words" in warning and "'vie_Latn'" in warning
        assert evaluate_translations(*texts, "en").warning
        assert bleu(*texts, "en").value < bleu(*texts).value
        assert not describe_tokenizer_mismatch("", texts[1])
    for texts, lang in ((ENGLISH, "en"), (ENGLISH, ""), (TEXTS["korean"], "ko"), (CHINESE, "zho_Hans")):
        assert not evaluate_translations(*texts, lang).warning
    # the language is guessed from the references
    assert bleu_tokenizer("", ["人工知能の研究について", "これはペンです"]) == "char"
    assert bleu_tokenizer("", ["iPhone 的价格是 999 美元", "今天天气很好"]) == "zh"
    assert bleu_tokenizer("", ["大韓民國 서울특별시의 인구는 많다"]) == "13a"
    assert bleu_tokenizer("", ["In Beijing (北京) it rains"]) == "13a"
    assert bleu_tokenizer("", ["", ""]) == "13a"


SECOND = ["On the mat sat the cat.", "A dog barks so loudly at night.", "He did not go home, right?"]


def test_several_references_are_scored_as_by_sacrebleu():
    outputs, references = ENGLISH
    pairs = list(zip(references, SECOND, strict=True))
    for score, metric in [(bleu(outputs, pairs), BLEU()), (chrf(outputs, pairs), CHRF())]:
        assert score.value == metric.corpus_score(outputs, [references, SECOND]).score
        assert score.signature == str(metric.get_signature())
        assert "nrefs:2" in score.signature
        assert score.value > metric.corpus_score(outputs, [references]).score
    assert bleu(outputs, [[text] for text in references]) == bleu(outputs, references)
    # their number may vary
    third = "He stayed, right?"
    varying = [references[0], (references[1], SECOND[1]), [references[2], SECOND[2], third]]
    streams = [references, [None, *SECOND[1:]], [None, None, third]]
    for score, metric in [(bleu(outputs, varying), BLEU()), (chrf(outputs, varying), CHRF())]:
        assert score.value == metric.corpus_score(outputs, streams).score
        assert "nrefs:var" in score.signature
    scores = evaluate_translations(outputs, varying).scores
    assert scores == [bleu(outputs, varying), lowercase_bleu(outputs, varying), chrf(outputs, varying)]


@pytest.mark.parametrize("metric", [bleu, chrf])
def test_invalid_references_are_refused(metric):
    for invalid in (3, None, [], ["a", 3], {"a": 1}):
        with pytest.raises(UserError, match=r"reference 1 is .*; expected a text or a list of texts"):
            metric(["a", "b"], ["a", invalid])
    with pytest.raises(UserError, match=r"3 outputs and 2 .*; of one list per reference, write list\(zip\("):
        metric(["a"] * 3, [["a"] * 3] * 2)
    with pytest.raises(UserError, match="2 outputs and 1 references"):
        metric(["a", "b"], ["a"])
    with pytest.raises(UserError, match="nothing to score"):
        metric([], [])
    with pytest.raises(UserError, match="measures the best translation of each source: remove n_best"):
        evaluate_translations(["a", ["b", "c"]], ["a", "b"])


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
