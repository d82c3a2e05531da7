from datetime import date, datetime
from decimal import Decimal
from random import Random

import pytest

pytest.importorskip("babel")
from babel import Locale

from polyhead.data.synthetic import synthetic_phrases
from polyhead.data.synthetic.synthetic_cldr import to_ascii_spaces

EN, ZH = Locale("en"), Locale("zh")


class FirstChoice(Random):
    def randrange(self, start, stop=None, step=1):
        return 0 if stop is None else start

    def choice(self, seq):
        return seq[0]

    def sample(self, population, k):
        return ["CA", "KE", "FJ"]


@pytest.fixture(autouse=True)
def _fixed_time(monkeypatch):
    monkeypatch.setattr(synthetic_phrases, "random_day", lambda rng: date(2027, 3, 3))
    monkeypatch.setattr(synthetic_phrases, "random_time", lambda rng: datetime(2027, 3, 3, 15, 5, 9).time())


def format_phrases(family):
    return [tuple(to_ascii_spaces(phrase(locale)) for locale in (EN, ZH)) for phrase in family(FirstChoice())]


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (
            synthetic_phrases.sample_dates,
            [
                ("Wednesday, March 3, 2027", "2027年3月3日星期三"),
                ("March 3, 2027", "2027年3月3日"),
                ("Mar 3, 2027", "2027年3月3日"),
                ("3/3/27", "2027/3/3"),
                ("Wed, Mar 3, 2027", "2027年3月3日周三"),
                ("March 2027", "2027年3月"),
                ("March 3", "3月3日"),
                ("Wed, Mar 3", "3月3日周三"),
                ("1st quarter 2027", "2027年第1季度"),
            ],
        ),
        (
            synthetic_phrases.sample_times,
            [("3:05:09 PM", "15:05:09"), ("3:05 PM", "15:05"), ("Wed 3:05 PM", "周三15:05")],
        ),
        (
            synthetic_phrases.sample_datetimes,
            [("Mar 3, 2027, 3:05:09 PM", "2027年3月3日 15:05:09"), ("3/3/27, 3:05 PM", "2027/3/3 15:05")],
        ),
        (
            synthetic_phrases.sample_intervals,
            [
                ("Wed, Mar 3 – Thu, Mar 4, 2027", "2027年3月3日周三至4日周四"),
                ("Mar 3 – 4, 2027", "2027年3月3日至4日"),
                ("Mar 3 – 4", "3月3日至4日"),
                ("3:05 PM", "15:05"),
            ],
        ),
        (
            synthetic_phrases.sample_countries,
            [
                ("Canada, Kenya, and Fiji", "加拿大、肯尼亚和斐济"),
                ("Canada, Kenya, or Fiji", "加拿大、肯尼亚或斐济"),
            ],
        ),
        (synthetic_phrases.sample_amounts, [("1 US dollar", "1美元"), ("$1.00", "US$1.00")]),
    ],
)
def test_phrases_are_formatted_by_cldr(family, expected):
    assert format_phrases(family) == expected


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("speed-kilometer-per-hour", ["85.5 kilometers per hour", "每小时85.5公里"]),
        ("mass-kilogram", ["85.5 kilograms", "85.5千克"]),
        ("length-meter", ["85.5 meters", "85.5米"]),  # zh has no long form; CLDR falls back to the short one
    ],
)
def test_units_are_placed_by_locale(unit, expected):
    assert [synthetic_phrases.format_measure(Decimal("85.5"), unit, "long", x) for x in (EN, ZH)] == expected


def test_units_missing_from_a_locale_are_left_out():
    assert synthetic_phrases.format_measure(Decimal(2), "length-light-year", "long", ZH) == "2光年"
    for unit in synthetic_phrases.UNITS:
        for name in ("en", "zh", "de", "ja", "fr"):
            text = synthetic_phrases.format_measure(Decimal(2), unit, "long", Locale(name))
            assert text is None or unit not in text
