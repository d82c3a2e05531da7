"""Tests of data/synthetic/synthetic_phrases.py."""

from __future__ import annotations

from datetime import date, datetime
from random import Random

import pytest
from babel import Locale

from polyhead.data.synthetic import synthetic_phrases
from polyhead.data.synthetic.synthetic_cldr import to_ascii_spaces

pytest.importorskip("babel")

EN, ZH = Locale("en"), Locale("zh")


class Fixed(Random):
    """A source of numbers that always draws the smallest: so that one known thing is said."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:  # type: ignore[override]
        return 0 if stop is None else start

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return seq[0]


def said(family: synthetic_phrases.PhraseFamily, rng: Random | None = None) -> list[tuple[str, str]]:
    return [(to_ascii_spaces(say(EN)), to_ascii_spaces(say(ZH))) for say in family(rng or Fixed())]


def test_dates_are_worded_as_people_write_them(monkeypatch):
    monkeypatch.setattr(synthetic_phrases, "random_day", lambda rng: date(2027, 3, 3))
    assert said(synthetic_phrases.sample_dates) == [
        ("Wednesday, March 3, 2027", "2027年3月3日星期三"),
        ("March 3, 2027", "2027年3月3日"),
        ("Mar 3, 2027", "2027年3月3日"),
        ("3/3/27", "2027/3/3"),
        ("Wed, Mar 3, 2027", "2027年3月3日周三"),
        ("March 2027", "2027年3月"),
        ("March 3", "3月3日"),
        ("Wed, Mar 3", "3月3日周三"),
        ("1st quarter 2027", "2027年第1季度"),
    ]


def test_times_change_clock_between_english_and_chinese(monkeypatch):
    monkeypatch.setattr(synthetic_phrases, "random_time", lambda rng: datetime(2027, 3, 3, 15, 5, 9).time())
    monkeypatch.setattr(synthetic_phrases, "random_day", lambda rng: date(2027, 3, 3))
    assert said(synthetic_phrases.sample_times) == [
        ("3:05:09 PM", "15:05:09"),
        ("3:05 PM", "15:05"),
        ("Wed 3:05 PM", "周三15:05"),
    ]
    assert said(synthetic_phrases.sample_datetimes)[0] == ("Mar 3, 2027, 3:05:09 PM", "2027年3月3日 15:05:09")


def test_intervals_name_what_both_ends_share_once(monkeypatch):
    monkeypatch.setattr(synthetic_phrases, "random_day", lambda rng: date(2027, 3, 3))
    full, dated, short, _ = said(synthetic_phrases.sample_intervals)
    assert dated == ("Mar 3 – 4, 2027", "2027年3月3日至4日")
    assert short == ("Mar 3 – 4", "3月3日至4日")
    assert full == ("Wed, Mar 3 – Thu, Mar 4, 2027", "2027年3月3日周三至4日周四")


def test_countries_are_listed_with_the_conjunction_of_each_language(monkeypatch):
    monkeypatch.setattr(Fixed, "sample", lambda self, population, k: ["CA", "KE", "FJ"], raising=False)
    assert said(synthetic_phrases.sample_countries) == [
        ("Canada, Kenya, and Fiji", "加拿大、肯尼亚和斐济"),
        ("Canada, Kenya, or Fiji", "加拿大、肯尼亚或斐济"),
    ]


def test_units_and_money_move_around_their_number():
    from decimal import Decimal

    def measured(unit, length):
        return tuple(
            synthetic_phrases.format_measure(Decimal("85.5"), unit, length, locale) for locale in (EN, ZH)
        )

    assert measured("speed-kilometer-per-hour", "long") == ("85.5 kilometers per hour", "每小时85.5公里")
    assert measured("mass-kilogram", "long") == ("85.5 kilograms", "85.5千克")
    assert measured("length-meter", "long") == (
        "85.5 meters",
        "85.5米",
    )  # zh has no long form: CLDR says the short one
    assert said(synthetic_phrases.sample_amounts) == [("1 US dollar", "1美元"), ("$1.00", "US$1.00")]


def test_a_unit_that_a_locale_lacks_is_left_out():
    from decimal import Decimal

    assert synthetic_phrases.format_measure(Decimal(2), "length-light-year", "long", ZH) == "2光年"
    for unit in synthetic_phrases.UNITS:
        for name in ("en", "zh", "de", "ja", "fr"):
            text = synthetic_phrases.format_measure(Decimal(2), unit, "long", Locale(name))
            assert text is None or unit not in text
