"""Tests of estimate/expected_quality.py."""

from __future__ import annotations

import re
from pathlib import Path

from polyhead.estimate.expected_quality import _MEASUREMENTS, CORPUS_UNITS, OWN_RESULTS, find_measurements
from polyhead.estimate.summary import describe_measurement


def test_quality_is_what_corpora_of_this_size_gave():
    found = find_measurements("translation", {"lines": 30_000, "bytes": 4e6})
    assert [one.corpus for one in found] == ["Multi30k en-de", "Tatoeba en-zh"]
    assert describe_measurement(found[0]) == "BLEU 40.88 (Multi30k en-de, 29,000 pairs, 2.6 M parameters)"
    assert not find_measurements("translation", {"lines": 2_000, "bytes": 4e6})
    assert not find_measurements("chat", {"lines": 30_000, "bytes": 4e6})
    assert not find_measurements("translation", {})
    (wiki,) = find_measurements("language-model", {"lines": 1, "bytes": 12e6})
    assert describe_measurement(wiki) == "perplexity 117.4 per word (WikiText-2, 10.8 MB, 5.2 M parameters)"
    for one in _MEASUREMENTS:
        size = {"lines" if one.task in CORPUS_UNITS else "bytes": one.size}
        assert one in find_measurements(one.task, size)


def test_our_measured_points_are_those_of_the_results():
    results = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    for one in _MEASUREMENTS:
        if one.source == OWN_RESULTS:
            assert one.corpus.split()[0].strip(",") in results.replace("Tinyshakespeare", "Shakespeare")
            (figure,) = re.findall(r"\d+\.\d+", one.score)
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", results), one
