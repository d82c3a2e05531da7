"""Phrases that exist in any language: dates, times, intervals, amounts and lists, formatted by Babel (CLDR).

A *wording* formats one value in a given locale. A *family* draws a value (a date, three countries) and
returns all its wordings, the fullest first. Two locales with the same wording of the same value make a
correct pair.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from random import Random
from typing import Literal

from babel import Locale
from babel.dates import (
    format_date,
    format_datetime,
    format_interval,
    format_skeleton,
    format_time,
    format_timedelta,
)
from babel.lists import format_list
from babel.numbers import format_currency, get_currency_precision
from babel.units import format_unit

Wording = Callable[[Locale], str | None]  # None: this locale does not define the wording
PhraseFamily = Callable[[Random], list[Wording]]
UnitLength = Literal["short", "long"]

# One century only, so that "3/3/49" is unambiguous.
FIRST_DAY, DAYS = date(1950, 1, 1), (date(2050, 1, 1) - date(1950, 1, 1)).days

ISO_3166 = (
    "AR AT AU BE BR CA CH CL CU DE DK EG ES FI FJ FR GB GR IE IN IS IT JP KE MA MX NG NL NO NP NZ PE "
    "PL PT SE TH US ZA"
)
ISO_4217 = "USD EUR JPY GBP CHF CAD AUD SEK NOK DKK PLN INR BRL MXN ZAR KES EGP THB"
CLDR_UNITS = (
    "length-kilometer length-meter length-centimeter length-millimeter length-mile length-foot "
    "length-light-year mass-kilogram mass-gram mass-pound mass-ounce volume-liter volume-milliliter "
    "volume-cubic-meter area-hectare area-square-meter area-square-kilometer speed-kilometer-per-hour "
    "speed-meter-per-second speed-mile-per-hour temperature-celsius temperature-fahrenheit power-watt "
    "power-kilowatt energy-kilowatt-hour electric-volt digital-megabyte digital-gigabyte frequency-hertz "
    "angle-degree consumption-liter-per-100-kilometer duration-day duration-hour duration-minute "
    "duration-week duration-month duration-year duration-second"
)
TERRITORIES, CURRENCIES, UNITS = ISO_3166.split(), ISO_4217.split(), CLDR_UNITS.split()
_SECONDS_PER_PERIOD = {
    "year": 31536000,
    "month": 2592000,
    "week": 604800,
    "day": 86400,
    "hour": 3600,
    "minute": 60,
    "second": 1,
}
Period = Literal["year", "month", "week", "day", "hour", "minute", "second"]
PERIODS: tuple[Period, ...] = ("year", "month", "week", "day", "hour", "minute", "second")


def random_day(rng: Random) -> date:
    """A random day of the century."""
    return FIRST_DAY + timedelta(days=rng.randrange(DAYS))


def random_time(rng: Random) -> time:
    """A random second of the day."""
    return time(rng.randrange(24), rng.randrange(60), rng.randrange(60))


def sample_dates(rng: Random) -> list[Wording]:
    """A date: with and without weekday, month in words and in digits, and parts of it."""
    day = random_day(rng)
    return [
        *(partial(format_date, day, style) for style in ("full", "long", "medium", "short")),
        *(
            partial(format_date_fields, fields, day)
            for fields in ("yMMMEd", "yMMMM", "MMMMd", "MMMEd", "yQQQQ")
        ),
    ]


def sample_times(rng: Random) -> list[Wording]:
    """A time of day, on the clock (12 or 24 hours) of each locale."""
    clock, day = random_time(rng), random_day(rng)
    return [
        lambda locale: format_time(clock, "medium", locale=locale),
        lambda locale: format_time(clock, "short", locale=locale),
        lambda locale: format_date_fields(
            "Ehm" if uses_12_hour_clock(locale) else "EHm", datetime.combine(day, clock), locale
        ),
    ]


def sample_datetimes(rng: Random) -> list[Wording]:
    """A date with a time."""
    moment = datetime.combine(random_day(rng), random_time(rng))
    return [
        lambda locale: format_datetime(moment, "medium", locale=locale),
        lambda locale: format_datetime(moment, "short", locale=locale),
    ]


def sample_intervals(rng: Random) -> list[Wording]:
    """An interval between two days, or between two times of a day."""
    first = random_day(rng)
    last = first + timedelta(days=rng.randint(1, 90))
    start, end = sorted((random_time(rng), random_time(rng)))
    return [
        lambda locale: format_interval(first, last, "yMMMEd", locale=locale),
        lambda locale: format_interval(first, last, "yMMMd", locale=locale),
        lambda locale: format_interval(first, last, "MMMd", locale=locale),
        lambda locale: format_interval(
            start, end, "hm" if uses_12_hour_clock(locale) else "Hm", locale=locale
        ),
    ]


def sample_relative_times(rng: Random) -> list[Wording]:
    """A time relative to now, in the past or in the future."""
    period = rng.choice(PERIODS)
    seconds = rng.randint(1, 99) * _SECONDS_PER_PERIOD[period] * rng.choice((-1, 1))
    # an unreachable threshold keeps the sampled period: "48 hours ago" must not become "2 days ago"
    return [
        lambda locale: format_timedelta(seconds, period, threshold=1e9, add_direction=True, locale=locale),
    ]


def sample_measures(rng: Random) -> list[Wording]:
    """A number with a unit, as a word and as a symbol."""
    unit, tenths = rng.choice(UNITS), rng.randint(1, 9999)
    value = Decimal(tenths) / 10 if rng.random() < 0.4 else Decimal(tenths // 10 + 1)
    return [
        lambda locale: format_measure(value, unit, "long", locale),
        lambda locale: format_measure(value, unit, "short", locale),
    ]


def sample_amounts(rng: Random) -> list[Wording]:
    """An amount of money: the currency by name, and by symbol."""
    code, cents = rng.choice(CURRENCIES), rng.randint(100, 99999)
    units = cents // 100
    exact = Decimal(cents) / 100 if get_currency_precision(code) else Decimal(units)
    return [
        lambda locale: format_currency(units, code, locale=locale, format_type="name", currency_digits=False),
        lambda locale: format_currency(exact, code, locale=locale),
    ]


def sample_countries(rng: Random) -> list[Wording]:
    """Up to three countries, joined by "and" or by "or"."""
    codes = rng.sample(TERRITORIES, rng.choice((1, 2, 2, 3, 3, 3, 3)))

    def country_names(locale: Locale) -> list[str]:
        return [locale.territories[code] for code in codes]

    return [
        lambda locale: format_list(country_names(locale), "standard", locale),
        lambda locale: format_list(country_names(locale), "or", locale),
    ]


def format_date_fields(fields: str, value: date | datetime, locale: Locale) -> str | None:
    """These fields in the order of the locale, or None if the locale does not define them."""
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    return format_skeleton(fields, moment, locale=locale) if fields in locale.datetime_skeletons else None


def format_measure(value: Decimal, unit: str, length: UnitLength, locale: Locale) -> str | None:
    """A number with a unit, in the short form if the locale has no long one, as defined by CLDR's root.

    Babel prints the unit's id instead (zh: "5 length-meter").
    """
    for form in (length, "short"):
        text = format_unit(value, unit, form, locale=locale)
        if unit not in text:
            return text
    return None


def uses_12_hour_clock(locale: Locale) -> bool:
    """Whether the locale counts hours to 12 and adds the half of the day."""
    return "a" in locale.time_formats["short"].pattern


# Weight of each family in percent: families with more different values have more.
FAMILIES: dict[str, tuple[PhraseFamily, int]] = {
    "dates": (sample_dates, 32),
    "times": (sample_times, 7),
    "moments": (sample_datetimes, 9),
    "intervals": (sample_intervals, 9),
    "relative": (sample_relative_times, 7),
    "measures": (sample_measures, 14),
    "money": (sample_amounts, 10),
    "countries": (sample_countries, 12),
}
