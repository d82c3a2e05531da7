"""User-facing text in English or Chinese.

The English text is the key: ``tr("saved at step {step}", step=3)`` looks it up in the catalogs,
``locale/LANGUAGE/*.json`` of ``CATALOG_PACKAGES``, and falls back to English. Errors are raised in English,
which programs may parse; ``translate_message`` translates the finished message where the command line
prints it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from polyhead.core.errors import UserError, did_you_mean

UI_LANGUAGES = {"en": "English", "zh": "中文"}
CATALOG_PACKAGES = ("polyhead.core", "polyhead_lab")
# catalog whose entries are message patterns; labels in the others, such as "{time} left", match any message
_MESSAGES = "errors"
Translate = Callable[..., str]  # ``tr`` or ``format_english``
_QUOTES = "'\""  # around values from the user
_PLACEHOLDER = re.compile(r"\{(\w++)[^{}]*+\}")
_language: str | None = None
_language_here: ContextVar[str | None] = ContextVar("_language_here", default=None)


def get_language() -> str:
    """The language of ``use_language``, else of ``set_language``, else of the environment.

    The variables of the environment are POLYHEAD_LANG, LC_ALL, LC_MESSAGES and LANG.
    """
    if chosen := _language_here.get():
        return chosen
    if _language is not None:
        return _language
    for name in ("POLYHEAD_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        if value := os.environ.get(name):
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


def get_chosen_language() -> str | None:
    """The language set by ``set_language``, as ``--lang`` does; None if the environment decides."""
    return _language


def set_language(language: str | None) -> None:
    """Set the language of this process, a key of ``UI_LANGUAGES``; None returns to the environment's."""
    global _language
    _language = None if language is None else check_language(language)


@contextmanager
def use_language(language: str) -> Iterator[None]:
    """Use a language within a block, in this thread alone."""
    token = _language_here.set(check_language(language))
    try:
        yield
    finally:
        _language_here.reset(token)


def check_language(language: str) -> str:
    """The key of ``UI_LANGUAGES`` for a tag such as zh, zh-CN or en_US; UserError for another language."""
    tag = re.split(r"[-_.]", language.lower())[0]
    if tag not in UI_LANGUAGES:
        hint = did_you_mean(language, UI_LANGUAGES)
        raise UserError(f"--lang: unknown language {language!r}{hint}; allowed: {', '.join(UI_LANGUAGES)}")
    return tag


@cache
def load_catalog(language: str, subject: str | None = None) -> Mapping[str, str]:
    """English text -> translation, from the catalog ``subject`` or from all catalogs; empty for English."""
    if language == "en":
        return {}
    catalog: dict[str, str] = {}
    for file in list_catalogs(language):
        if subject in (None, file.stem):
            catalog |= json.loads(file.read_text(encoding="utf-8"))
    return catalog


def list_catalogs(language: str) -> list[Path]:
    """The files of the catalogs of a language."""
    origins = [Path(spec.origin) for spec in map(find_spec, CATALOG_PACKAGES) if spec and spec.origin]
    return [file for path in origins for file in sorted((path.parent / "locale" / language).glob("*.json"))]


def tr(text: str, /, **values: Any) -> str:
    """The text in the current language, with its ``{placeholders}`` filled in."""
    translated = load_catalog(get_language()).get(text, text)
    return translated.format(**values) if values else translated


def format_english(text: str, /, **values: Any) -> str:
    """The English text with its ``{placeholders}`` filled in, for files and errors; ``tr`` is for display."""
    return text.format(**values) if values else text


def translate_message(message: str, subject: str | None = None, language: str | None = None) -> str:
    """Translate a finished English message to a language, by default the current one.

    Unchanged if no catalog entry matches.

    An entry matches if it equals the message with ``{name}`` in place of the varying parts. The entry with
    the most literal text wins. A placeholder's value is translated too if it is itself an entry of the errors
    catalog, such as "a classifier". ``subject`` restricts the lookup to one catalog, also for unquoted
    placeholder values; without it whole messages are looked up in all catalogs, patterns in that of errors.
    """
    language = language or get_language()
    catalog = load_catalog(language, subject)
    if message in catalog:
        return catalog[message]
    for pattern, translated in _patterns(language, subject or _MESSAGES):
        if (match := pattern.fullmatch(message)) and all(map(is_balanced, match.groups())):
            words = load_catalog(language, _MESSAGES)
            fields = {name: words.get(word, word) for name, word in match.groupdict().items()}
            if subject:
                fields = {
                    name: word if word[0] in _QUOTES else translate_message(word, subject, language)
                    for name, word in fields.items()
                }
            return translated.format(**fields)
    return message


def translate_fact(text: str) -> str:
    """Translate a name or value from the (English) README.md of a run."""
    return tr(translate_message(text, "facts"))


def is_balanced(text: str) -> bool:
    """Whether all parentheses are balanced: a placeholder does not match half of a pair."""
    depths = [text.count("(", 0, i) - text.count(")", 0, i) for i in range(len(text) + 1)]
    return min(depths) == depths[-1] == 0


@cache
def _patterns(language: str, subject: str) -> list[tuple[re.Pattern[str], str]]:
    """The entries with placeholders as regular expressions, most specific first."""
    catalog = load_catalog(language, subject)
    entries = sorted(catalog, key=lambda text: -len(_PLACEHOLDER.sub("", text)))
    return [
        (_compile_pattern(text), _PLACEHOLDER.sub(r"{\1}", catalog[text]))
        for text in entries
        if _PLACEHOLDER.search(text)
    ]


def _compile_pattern(text: str) -> re.Pattern[str]:
    pieces = re.split(r"(\{\w++[^{}]*+\})", text)
    names: set[str] = set()
    out = []
    for piece in pieces:
        name = _PLACEHOLDER.fullmatch(piece)
        if not name:
            out.append(re.escape(piece))
        elif name[1] in names:
            out.append(f"(?P={name[1]})")
        else:
            names.add(name[1])
            out.append(f"(?P<{name[1]}>.+?)")
    return re.compile("".join(out), re.DOTALL)
