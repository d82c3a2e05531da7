"""Things that can be said in any language: dates, times, spans, amounts and lists, worded by CLDR through Babel.

A *say* words one thing in a given locale. A *family* draws a thing (this date, those three countries) and returns
all the ways to say it, the fullest first. Two locales that word the same thing the same way make a correct pair.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
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

Say = Callable[[Locale], str | None]  # None: this locale has no words for it
Family = Callable[[Random], list[Say]]
Length = Literal["short", "long"]

# A century and no more: so that "3/3/49" means one year only.
FIRST_DAY, DAYS = date(1950, 1, 1), (date(2050, 1, 1) - date(1950, 1, 1)).days

ISO_3166 = "AR AT AU BE BR CA CH CL CU DE DK EG ES FI FJ FR GB GR IE IN IS IT JP KE MA MX NG NL NO NP NZ PE PL PT SE TH US ZA"
ISO_4217 = "USD EUR JPY GBP CHF CAD AUD SEK NOK DKK PLN INR BRL MXN ZAR KES EGP THB"
CLDR_UNITS = (
    "length-kilometer length-meter length-centimeter length-millimeter length-mile length-foot length-light-year "
    "mass-kilogram mass-gram mass-pound mass-ounce volume-liter volume-milliliter volume-cubic-meter area-hectare "
    "area-square-meter area-square-kilometer speed-kilometer-per-hour speed-meter-per-second speed-mile-per-hour "
    "temperature-celsius temperature-fahrenheit power-watt power-kilowatt energy-kilowatt-hour electric-volt "
    "digital-megabyte digital-gigabyte frequency-hertz angle-degree consumption-liter-per-100-kilometer "
    "duration-day duration-hour duration-minute duration-week duration-month duration-year duration-second"
)
TERRITORIES, CURRENCIES, UNITS = ISO_3166.split(), ISO_4217.split(), CLDR_UNITS.split()
SECONDS = {
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


def a_day(rng: Random) -> date:
    """Some day of the century."""
    return FIRST_DAY + timedelta(days=rng.randrange(DAYS))


def a_time(rng: Random) -> time:
    """Some second of the day."""
    return time(rng.randrange(24), rng.randrange(60), rng.randrange(60))


def dates(rng: Random) -> list[Say]:
    """One day: with and without weekday, month in words and in figures, and parts of it."""
    day = a_day(rng)
    return [
        lambda locale: format_date(day, "full", locale=locale),
        lambda locale: format_date(day, "long", locale=locale),
        lambda locale: format_date(day, "medium", locale=locale),
        lambda locale: format_date(day, "short", locale=locale),
        lambda locale: skeleton("yMMMEd", day, locale),
        lambda locale: skeleton("yMMMM", day, locale),
        lambda locale: skeleton("MMMMd", day, locale),
        lambda locale: skeleton("MMMEd", day, locale),
        lambda locale: skeleton("yQQQQ", day, locale),
    ]


def times(rng: Random) -> list[Say]:
    """A time of day, on the clock (12 or 24 hours) that each locale uses."""
    clock, day = a_time(rng), a_day(rng)
    return [
        lambda locale: format_time(clock, "medium", locale=locale),
        lambda locale: format_time(clock, "short", locale=locale),
        lambda locale: skeleton(
            "Ehm" if halves_the_day(locale) else "EHm", datetime.combine(day, clock), locale
        ),
    ]


def moments(rng: Random) -> list[Say]:
    """A day and a time."""
    moment = datetime.combine(a_day(rng), a_time(rng))
    return [
        lambda locale: format_datetime(moment, "medium", locale=locale),
        lambda locale: format_datetime(moment, "short", locale=locale),
    ]


def intervals(rng: Random) -> list[Say]:
    """From one day to another, or from one time to a later one."""
    first = a_day(rng)
    last = first + timedelta(days=rng.randint(1, 90))
    start, end = sorted((a_time(rng), a_time(rng)))
    return [
        lambda locale: format_interval(first, last, "yMMMEd", locale=locale),
        lambda locale: format_interval(first, last, "yMMMd", locale=locale),
        lambda locale: format_interval(first, last, "MMMd", locale=locale),
        lambda locale: format_interval(start, end, "hm" if halves_the_day(locale) else "Hm", locale=locale),
    ]


def relative(rng: Random) -> list[Say]:
    """So long ago, or so long from now."""
    period = rng.choice(PERIODS)
    seconds = rng.randint(1, 99) * SECONDS[period] * rng.choice((-1, 1))
    # a threshold out of reach keeps the period that was drawn: "48 hours ago" must not turn into "2 days ago"
    return [
        lambda locale: format_timedelta(seconds, period, threshold=1e9, add_direction=True, locale=locale),
    ]


def measures(rng: Random) -> list[Say]:
    """A number with a unit, written out and as a symbol."""
    unit, tenths = rng.choice(UNITS), rng.randint(1, 9999)
    value = Decimal(tenths) / 10 if rng.random() < 0.4 else Decimal(tenths // 10 + 1)
    return [
        lambda locale: measure(value, unit, "long", locale),
        lambda locale: measure(value, unit, "short", locale),
    ]


def money(rng: Random) -> list[Say]:
    """An amount of money: the currency by name, and by symbol."""
    code, cents = rng.choice(CURRENCIES), rng.randint(100, 99999)
    whole = cents // 100
    exact = Decimal(cents) / 100 if get_currency_precision(code) else Decimal(whole)
    return [
        lambda locale: format_currency(whole, code, locale=locale, format_type="name", currency_digits=False),
        lambda locale: format_currency(exact, code, locale=locale),
    ]


def countries(rng: Random) -> list[Say]:
    """Up to three countries, joined by "and" or by "or"."""
    chosen = rng.sample(TERRITORIES, rng.choice((1, 2, 2, 3, 3, 3, 3)))

    def names(locale: Locale) -> list[str]:
        return [locale.territories[code] for code in chosen]

    return [
        lambda locale: format_list(names(locale), "standard", locale),
        lambda locale: format_list(names(locale), "or", locale),
    ]


def skeleton(fields: str, when: date | datetime, locale: Locale) -> str | None:
    """The locale's own order of these fields, or None where it does not define one."""
    moment = when if isinstance(when, datetime) else datetime.combine(when, time())
    return format_skeleton(fields, moment, locale=locale) if fields in locale.datetime_skeletons else None


def measure(value: Decimal, unit: str, length: Length, locale: Locale) -> str | None:
    """CLDR's root says that a missing long form is the short one; Babel prints the unit's id instead (zh: "5 length-meter")."""
    for form in (length, "short"):
        text = format_unit(value, unit, form, locale=locale)
        if unit not in text:
            return text
    return None


def halves_the_day(locale: Locale) -> bool:
    """Does the locale count hours to 12 and say which half of the day?"""
    return "a" in locale.time_formats["short"].pattern


# How often each family is drawn, in hundredths: those with more different things to say more often.
FAMILIES: dict[str, tuple[Family, int]] = {
    "dates": (dates, 32),
    "times": (times, 7),
    "moments": (moments, 9),
    "intervals": (intervals, 9),
    "relative": (relative, 7),
    "measures": (measures, 14),
    "money": (money, 10),
    "countries": (countries, 12),
}
