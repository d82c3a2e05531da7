import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("babel")
from babel import Locale

from polyhead.data.synthetic import synthetic_phrases
from polyhead.data.synthetic.synthetic_cldr import to_ascii_spaces

EN, ZH = Locale("en"), Locale("zh")
PHRASES = json.loads(Path(__file__).with_name("phrases.json").read_text(encoding="utf-8"))


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


@pytest.mark.parametrize("family", PHRASES)
def test_phrases_are_formatted_by_cldr(family):
    phrases = getattr(synthetic_phrases, family)(FirstChoice())
    formatted_pairs = [[to_ascii_spaces(phrase(locale)) for locale in (EN, ZH)] for phrase in phrases]
    assert formatted_pairs == PHRASES[family]


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
