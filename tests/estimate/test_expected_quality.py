import re
from pathlib import Path

from polyhead.estimate.expected_quality import _MEASUREMENTS, CORPUS_UNITS, OWN_RESULTS, find_measurements
from polyhead.estimate.report import describe_measurement


def test_quality_is_that_of_corpora_of_similar_size():
    matches = find_measurements("translation", {"lines": 30_000, "bytes": 4e6})
    assert [one.corpus for one in matches] == ["Multi30k en-de", "Tatoeba en-zh"]
    assert describe_measurement(matches[0]) == "BLEU 40.88 (Multi30k en-de, 29,000 pairs, 2.6 M parameters)"
    assert not find_measurements("translation", {"lines": 2_000, "bytes": 4e6})
    assert not find_measurements("chat", {"lines": 30_000, "bytes": 4e6})
    assert not find_measurements("translation", {})
    (wiki,) = find_measurements("language-model", {"lines": 1, "bytes": 12e6})
    assert describe_measurement(wiki) == "perplexity 117.4 per word (WikiText-2, 10.8 MB, 5.2 M parameters)"
    for one in _MEASUREMENTS:
        size = {"lines" if one.task in CORPUS_UNITS else "bytes": one.size}
        assert one in find_measurements(one.task, size)


def test_own_measurements_are_in_the_documented_results():
    results = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    for one in _MEASUREMENTS:
        if one.source == OWN_RESULTS:
            assert one.corpus.split()[0].strip(",") in results.replace("Tinyshakespeare", "Shakespeare")
            (number,) = re.findall(r"\d+\.\d+", one.score)
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", results), one
