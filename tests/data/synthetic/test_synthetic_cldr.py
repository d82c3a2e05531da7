import re
import sys
from collections import Counter

import pytest

pytest.importorskip("babel")

from polyhead.core.errors import UserError
from polyhead.core.extras import install_command
from polyhead.data.synthetic import synthetic_phrases
from polyhead.data.synthetic.synthetic_cldr import (
    PhrasePair,
    find_locale,
    make_pairs,
    split_pairs,
    write_corpus,
)


@pytest.fixture(scope="module")
def corpus():
    return make_pairs("en", "zh", n=2000, seed=1)


@pytest.fixture
def few_countries(monkeypatch):
    """With few families and countries all phrases are drawn."""
    families = {
        "relative": (synthetic_phrases.sample_relative_times, 1),
        "countries": (synthetic_phrases.sample_countries, 1),
    }
    monkeypatch.setattr(synthetic_phrases, "FAMILIES", families)
    monkeypatch.setattr(synthetic_phrases, "TERRITORIES", ["CA", "FJ", "KE"])
    return families


def test_everyday_phrases_are_in_the_corpus(few_countries):
    pairs = dict(make_pairs("en", "zh", n=1386 + 3 + 12 + 12))
    expected = {
        "in 3 days": "3天后",
        "5 months ago": "5个月前",
        "48 hours ago": "48小时前",
        "in 1 week": "1周后",
        "Canada and Fiji": "加拿大和斐济",
        "Fiji or Canada": "斐济或加拿大",
    }
    assert expected.items() <= pairs.items()
    del few_countries["relative"]  # three countries, and pairs of them with two conjunctions in any order
    with pytest.raises(UserError, match="found only 27 different pairs"):
        make_pairs("en", "zh", n=40)


def test_seed_determines_the_pairs(corpus):
    assert make_pairs("en", "zh", n=2000, seed=1) == corpus
    assert set(make_pairs("en", "zh", n=500, seed=1)) <= set(corpus)
    assert not set(make_pairs("en", "zh", n=500, seed=2)) <= set(corpus)


@pytest.mark.parametrize(
    ("source", "target"), [("en", "zh"), ("zh", "en"), ("en", "de"), ("ja", "en"), ("fr", "en")]
)
def test_every_source_has_one_clean_target(source, target):
    pairs = make_pairs(source, target, n=1000)
    assert len(pairs) == len({pair.source for pair in pairs}) == 1000
    for text in (text for pair in pairs for text in pair):
        assert text and text == text.strip()
        assert not set(text) & {"\n", "\u202f", "\u00a0", "\u2009"}
    assert max(len(pair.source) for pair in pairs) <= 42


def test_target_of_a_source_is_the_longest_wording():
    pairs = [p for p in make_pairs("zh", "en", n=4000) if p.source.endswith("日") and "至" not in p.source]
    months = {pair.target.split()[0] for pair in pairs if pair.target[0].isalpha()}
    assert {"March", "August"} <= months
    assert not months & {"Mar", "Aug"}


def test_all_families_occur_with_recent_years(corpus):
    years = {int(p.source[-4:]) for p in corpus if p.source[-6:-4] == ", " and p.source[-4:].isdigit()}
    assert min(years) >= 1950 and max(years) <= 2050
    parts = ["quarter", " ago", "in ", " and ", " or ", "PM", " – ", "km", "$", "dollars", "meters per"]
    assert [part for part in parts if not any(part in p.source for p in corpus)] == []


def test_splits_share_no_source_and_no_target(corpus):
    splits = split_pairs(corpus, 150, 150)
    assert sum(map(len, splits)) == len(corpus)
    assert abs(len(splits.valid) - 150) <= 3 and abs(len(splits.test) - 150) <= 3
    for side in (0, 1):
        train, valid, test = ({pair[side] for pair in part} for part in splits)
        assert not train & valid and not train & test and not valid & test
    pairs = [PhrasePair(f"{form} {i}", f"target {i}") for i in range(50) for form in ("March", "Mar")]
    for part in split_pairs(pairs, 10, 10):
        assert set(Counter(pair.target for pair in part).values()) == {2}
    with pytest.raises(UserError, match="leave no training pairs"):
        split_pairs(corpus[:100], 60, 40)


def test_files_hold_the_pairs_line_by_line(tmp_path):
    files = write_corpus(tmp_path / "new", "en", "de", n=600, n_valid=50, n_test=50)
    names = [f"{name}.{side}" for name in ("test", "train", "valid") for side in ("de", "en")]
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == names
    lines = [tuple(file.read_text(encoding="utf-8").splitlines() for file in files[name]) for name in files]
    pairs = [PhrasePair(*pair) for source, target in lines for pair in zip(source, target, strict=True)]
    assert sorted(pairs) == sorted(make_pairs("en", "de", n=600))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("en", "germn"), "unknown locale.*'de'"),
        (("en", "en_USA"), "unknown locale.*'en_US'"),
        (("en", "xx"), "unknown locale 'xx'"),
        (("en", ""), "unknown locale ''"),
        (("en", "en"), "both 'en'"),
        (("en", "zh", 0), "at least 1"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message, monkeypatch):
    with pytest.raises(UserError, match=message):
        make_pairs(*arguments)
    assert find_locale("zh-Hant") == find_locale("zh_Hant")
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(UserError, match=re.escape(install_command("demo"))):
        make_pairs("en", "zh", n=10)
