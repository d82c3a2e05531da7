"""Synthetic parallel corpus: dates, amounts and lists in two languages, formatted with Unicode CLDR data.

The text is realistic (each side is what a native reader expects), correct and checkable, and its word order
differs: "85.5 kilometers per hour" is "每小时85.5公里". Babel contains the data; the extra ``demo``
installs it.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from polyhead.core.errors import UserError, find_similar
from polyhead.core.extras import install_command

if TYPE_CHECKING:
    from babel import Locale

MAX_CHARS = 42  # characters of a source: "Wednesday, September 30, 2026" has 29
TRIES_PER_PAIR = 40


class PhrasePair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class Splits(NamedTuple):
    """Training, validation and test pairs; no source and no target is in two of them."""

    train: list[PhrasePair]
    valid: list[PhrasePair]
    test: list[PhrasePair]


def make_pairs(
    source_locale: str = "en", target_locale: str = "zh", n: int = 20000, seed: int = 1
) -> list[PhrasePair]:
    """Generate n different pairs, deterministic for a seed; ambiguous sources are left out."""
    source, target = find_locales(source_locale, target_locale)
    if n < 1:
        raise UserError(f"n is {n}; expected at least 1 pair")
    from polyhead.data.synthetic.synthetic_phrases import FAMILIES

    families, weights = zip(*FAMILIES.values(), strict=True)
    rng = Random(seed)
    translations: dict[str, str] = {}
    ambiguous: set[str] = set()
    for _ in range(n * TRIES_PER_PAIR):
        if len(translations) == n:
            break
        (family,) = rng.choices(families, weights)
        wordings = family(rng)
        index = rng.randrange(len(wordings))
        text, translation = to_ascii_spaces(wordings[index](source)), to_ascii_spaces(wordings[index](target))
        if not text or not translation or text in ambiguous or len(text) > MAX_CHARS:
            continue
        if any(to_ascii_spaces(fuller(source)) == text for fuller in wordings[:index]):
            continue  # Chinese writes "Mar 3" and "March 3" the same way: keep the fuller wording
        if translations.setdefault(text, translation) != translation:
            ambiguous.add(text)
            del translations[text]
    if len(translations) < n:
        raise UserError(
            f"{source_locale}-{target_locale}: found only {len(translations)} different pairs of the {n} "
            f"requested; request at most {len(translations)}"
        )
    return [PhrasePair(*item) for item in translations.items()]


def split_pairs(pairs: list[PhrasePair], n_valid: int, n_test: int, seed: int = 1) -> Splits:
    """Split by target, not by pair: "Mar 3" and "March 3" share one, and must not be in different splits.

    Sizes are exact except for the few pairs that share a target.
    """
    if n_valid + n_test >= len(pairs):
        raise UserError(
            f"{n_valid} validation and {n_test} test pairs leave no training pairs: there are {len(pairs)} "
            "pairs"
        )
    by_target: dict[str, list[PhrasePair]] = {}
    for pair in pairs:
        by_target.setdefault(pair.target, []).append(pair)
    groups = list(by_target.values())
    Random(seed).shuffle(groups)
    splits = Splits([], [], [])
    split_sizes = [(splits.valid, n_valid), (splits.test, n_test)]
    for group in groups:
        part = next((p for p, size in split_sizes if len(p) < size), splits.train)
        part.extend(group)
    for part in splits:
        Random(seed).shuffle(part)
    return splits


def write_corpus(
    directory: Path | str,
    source_locale: str = "en",
    target_locale: str = "zh",
    *,
    n: int = 20000,
    n_valid: int = 500,
    n_test: int = 500,
    seed: int = 1,
) -> dict[str, tuple[Path, Path]]:
    """Write ``train.en train.zh valid.en ...``, one sentence per line; return the two files of each split."""
    splits = split_pairs(make_pairs(source_locale, target_locale, n, seed), n_valid, n_test, seed)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    split_files = {}
    for name, part in splits._asdict().items():
        files = directory / f"{name}.{source_locale}", directory / f"{name}.{target_locale}"
        for file, lines in zip(files, zip(*part, strict=True), strict=True):
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        split_files[name] = files
    return split_files


def to_ascii_spaces(text: str | None) -> str:
    """Replace all space separators by ASCII spaces.

    CLDR uses U+202F, U+00A0 and U+2009, which users do not type.
    """
    return "".join(" " if unicodedata.category(c) == "Zs" else c for c in text or "")


def find_locales(source: str, target: str) -> tuple[Locale, Locale]:
    """Two different locales by their names."""
    locales = find_locale(source), find_locale(target)
    if locales[0] == locales[1]:
        raise UserError(
            f"source and target locale are both {source!r}: expected two different ones, e.g. 'en' and 'zh'"
        )
    return locales


def find_locale(name: str) -> Locale:
    """The locale of a name ("zh", "pt_BR", "zh-Hant"); a UserError suggests the nearest known name."""
    try:
        from babel import Locale, UnknownLocaleError
        from babel.localedata import locale_identifiers
    except ImportError:
        raise UserError(
            f"the embedded corpus needs Babel, which is not installed: {install_command('demo')}"
        ) from None
    try:
        return Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError):
        codes = {code.lower(): code for code in locale_identifiers()}
        codes |= {
            title.lower(): code for code, title in Locale("en").languages.items() if code.lower() in codes
        }
        match = find_similar(name.lower(), codes)
        hint = f"; did you mean {codes[match]!r}?" if match else ""
        raise UserError(
            f"unknown locale {name!r}{hint or '.'} Any of the {len(locale_identifiers())} of CLDR are "
            "supported, e.g. en, zh, de, fr, ja, es, pt_BR"
        ) from None
