from __future__ import annotations

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
def corpus() -> list[PhrasePair]:
    return make_pairs("en", "zh", n=4000, seed=1)


@pytest.fixture(scope="module")
def everyday() -> dict[str, str]:
    """All spans of time, and all pairs of countries: few enough to meet each of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            synthetic_phrases,
            "FAMILIES",
            {
                "relative": (synthetic_phrases.sample_relative_times, 1),
                "countries": (synthetic_phrases.sample_countries, 1),
            },
        )
        patch.setattr(synthetic_phrases, "TERRITORIES", ["CA", "FJ", "KE"])
        return dict(make_pairs("en", "zh", n=1386 + 3 + 12 + 12))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("in 3 days", "3天后"),
        ("5 months ago", "5个月前"),
        ("48 hours ago", "48小时前"),
        ("in 1 week", "1周后"),
        ("Canada and Fiji", "加拿大和斐济"),
        ("Fiji or Canada", "斐济或加拿大"),
    ],
)
def test_everyday_phrases_are_in_the_corpus(everyday, source, target):
    assert everyday[source] == target


def test_the_same_seed_gives_the_same_pairs_and_another_seed_others(corpus):
    assert make_pairs("en", "zh", n=4000, seed=1) == corpus
    assert set(make_pairs("en", "zh", n=4000, seed=2)) != set(corpus)


def test_a_smaller_corpus_is_the_beginning_of_a_larger_one_up_to_ambiguity(corpus):
    assert set(make_pairs("en", "zh", n=1000, seed=1)) <= set(corpus)


@pytest.mark.parametrize(
    ("source", "target"), [("en", "zh"), ("zh", "en"), ("en", "de"), ("ja", "en"), ("fr", "en")]
)
def test_every_source_has_one_target_and_nothing_is_empty_or_oddly_spaced(source, target):
    found = make_pairs(source, target, n=2000)
    assert len(found) == 2000
    assert max(Counter(pair.source for pair in found).values()) == 1
    for pair in found:
        for text in pair:
            assert text
            assert text == text.strip()
            assert "\n" not in text
            assert not set(text) & {"\u202f", "\u00a0", "\u2009"}
        assert len(pair.source) <= 42


def test_a_source_is_translated_by_its_fullest_wording():
    targets = {
        p.target for p in make_pairs("zh", "en", n=4000) if p.source.endswith("日") and "至" not in p.source
    }
    months = {target.split()[0] for target in targets if target[0].isalpha()}
    assert {"March", "August"} <= months
    assert not months & {"Mar", "Aug"}


def test_all_families_are_there_and_years_stay_in_a_century(corpus):
    years = {int(p.source[-4:]) for p in corpus if p.source[-6:-4] == ", " and p.source[-4:].isdigit()}
    assert min(years) >= 1950
    assert max(years) <= 2050
    for piece in (
        "quarter",
        " ago",
        "in ",
        " and ",
        " or ",
        "PM",
        " – ",
        "km",
        "$",
        "dollars",
        "kilometers per hour",
    ):
        assert any(piece in p.source for p in corpus), piece


def test_no_source_and_no_target_is_in_two_splits(corpus):
    splits = split_pairs(corpus, 300, 300)
    assert sum(map(len, splits)) == len(corpus)
    assert abs(len(splits.valid) - 300) <= 3
    assert abs(len(splits.test) - 300) <= 3
    for side in (0, 1):
        train, valid, test = ({pair[side] for pair in part} for part in splits)
        assert not train & valid
        assert not train & test
        assert not valid & test


def test_pairs_that_share_a_target_stay_together():
    shared = [PhrasePair(f"{form} {i}", f"target {i}") for i in range(50) for form in ("March", "Mar")]
    for part in split_pairs(shared, 10, 10):
        assert all(count == 2 for count in Counter(pair.target for pair in part).values())


def test_the_written_files_hold_the_pairs_line_by_line(tmp_path):
    files = write_corpus(tmp_path / "new", "en", "de", n=600, n_valid=50, n_test=50)
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        f"{name}.{side}" for name in ("test", "train", "valid") for side in ("de", "en")
    ]
    lines = [tuple(file.read_text(encoding="utf-8").splitlines() for file in files[name]) for name in files]
    together = [PhrasePair(*pair) for source, target in lines for pair in zip(source, target, strict=True)]
    assert sorted(together) == sorted(make_pairs("en", "de", n=600))


@pytest.mark.parametrize(
    ("name", "near"),
    [("germn", "'de'"), ("en_USA", "'en_US'"), ("xx", "unknown locale 'xx'"), ("", "unknown locale ''")],
)
def test_an_unknown_locale_is_refused_with_the_nearest(name, near):
    with pytest.raises(UserError, match="unknown locale") as error:
        make_pairs("en", name)
    assert near in str(error.value)


def test_a_locale_may_be_spelled_either_way():
    assert find_locale("zh-Hant") == find_locale("zh_Hant")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("en", "en"), "both 'en'"), (("en", "zh", 0), "at least 1")],
)
def test_a_corpus_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        make_pairs(*arguments)


def test_a_corpus_larger_than_the_language_says_how_large_it_may_be(monkeypatch):
    monkeypatch.setattr(
        synthetic_phrases, "FAMILIES", {"relative": (synthetic_phrases.sample_relative_times, 1)}
    )
    with pytest.raises(
        UserError, match="found only 1386 different pairs"
    ):  # 99 numbers, 7 periods, 2 directions
        make_pairs("en", "zh", n=2000)


def test_a_split_that_leaves_nothing_to_train_on_is_refused(corpus):
    with pytest.raises(UserError, match="leave no training pairs"):
        split_pairs(corpus[:100], 60, 40)


def test_without_babel_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(UserError, match=re.escape(install_command("demo"))):
        make_pairs("en", "zh", n=10)
