"""A parallel corpus out of thin air: the same date, amount or list worded in two languages by Unicode's CLDR data.

It is real (each side is what a native reader expects), correct, and checkable, and its word order truly moves:
"85.5 kilometers per hour" is "每小时85.5公里". Babel carries the data; the extra ``demo`` installs it.
"""

from __future__ import annotations

import difflib
import unicodedata
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from polyhead.core.extras import install_command
from polyhead.errors import UserError

if TYPE_CHECKING:
    from babel import Locale

MAX_CHARS = 42  # of a source: "Wednesday, September 30, 2026" has 29
TRIES_PER_PAIR = 40


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class Splits(NamedTuple):
    """Pairs to learn from, to choose by, and to judge by; no source and no target is in two of them."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def pairs(source_locale: str = "en", target_locale: str = "zh", n: int = 20000, seed: int = 1) -> list[Pair]:
    """Exactly n different pairs, the same for the same seed. A source that could mean two targets is left out."""
    source, target = find_locale(source_locale), find_locale(target_locale)
    if source == target:
        raise UserError(
            f"source and target locale are both {source_locale!r}: choose two, for example 'en' and 'zh'"
        )
    if n < 1:
        raise UserError(f"a corpus of {n} pairs was asked for; at least 1 is needed")
    from polyhead.data.phrases import FAMILIES

    families, weights = zip(*FAMILIES.values(), strict=True)
    rng = Random(seed)
    found: dict[str, str] = {}
    ambiguous: set[str] = set()
    for _ in range(n * TRIES_PER_PAIR):
        if len(found) == n:
            break
        (family,) = rng.choices(families, weights)
        ways = family(rng)
        chosen = rng.randrange(len(ways))
        text, translation = plain(ways[chosen](source)), plain(ways[chosen](target))
        if not text or not translation or text in ambiguous or len(text) > MAX_CHARS:
            continue
        if any(plain(fuller(source)) == text for fuller in ways[:chosen]):
            continue  # Chinese writes "Mar 3" and "March 3" alike: the fuller wording is the translation
        if found.setdefault(text, translation) != translation:
            ambiguous.add(text)
            del found[text]
    if len(found) < n:
        raise UserError(
            f"{source_locale}-{target_locale}: found only {len(found)} different pairs of the {n} asked for; "
            f"ask for at most {len(found)}"
        )
    return [Pair(*item) for item in found.items()]


def split(corpus: list[Pair], n_valid: int, n_test: int, seed: int = 1) -> Splits:
    """Cut by target, not by pair: "Mar 3" and "March 3" share one, and must not sit on both sides of the cut.

    Sizes are met to within the few pairs that share a target.
    """
    if n_valid + n_test >= len(corpus):
        raise UserError(
            f"{n_valid} validation and {n_test} test pairs leave nothing to train on: "
            f"there are {len(corpus)} pairs"
        )
    by_target: dict[str, list[Pair]] = {}
    for pair in corpus:
        by_target.setdefault(pair.target, []).append(pair)
    groups = list(by_target.values())
    Random(seed).shuffle(groups)
    splits = Splits([], [], [])
    wanted = [(splits.valid, n_valid), (splits.test, n_test)]
    for group in groups:
        part = next((p for p, size in wanted if len(p) < size), splits.train)
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
    """Write ``train.en train.zh valid.en ...``, a sentence a line, and return the pair of files of each split."""
    splits = split(pairs(source_locale, target_locale, n, seed), n_valid, n_test, seed)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, part in splits._asdict().items():
        files = directory / f"{name}.{source_locale}", directory / f"{name}.{target_locale}"
        for file, lines in zip(files, zip(*part, strict=True), strict=True):
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        written[name] = files
    return written


def plain(text: str | None) -> str:
    """CLDR separates with U+202F, U+00A0 and U+2009; nobody types those, so a model must not learn to ask for them."""
    return "".join(" " if unicodedata.category(c) == "Zs" else c for c in text or "")


def find_locale(name: str) -> Locale:
    """The locale of that name ("zh", "pt_BR", "zh-Hant"); an unknown one is a UserError with the nearest."""
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
        known = {code.lower(): code for code in locale_identifiers()}
        known |= {
            title.lower(): code for code, title in Locale("en").languages.items() if code.lower() in known
        }
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        hint = f"; did you mean {known[near[0]]!r}?" if near else ""
        raise UserError(
            f"unknown locale {name!r}{hint or '.'} Any of the {len(locale_identifiers())} of CLDR will do, "
            "such as en, zh, de, fr, ja, es, pt_BR"
        ) from None
