"""User-facing text in English or Chinese.

The English text is the key: ``tr("saved at step {step}", step=3)`` looks it up in the catalogs, ``locale/LANGUAGE/*.json``,
and falls back to English. Errors are raised in English, which programs may read; ``translate_message`` translates the
finished message where the command line prints it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from polyhead.errors import UserError, nearest

LANGUAGES = {"en": "English", "zh": "中文"}
# catalogs whose entries are patterns of messages; labels of the others, such as "{time} left", would match any message
MESSAGES = ("errors", "mistakes")
Translate = Callable[..., str]  # ``tr`` or ``format_english``
QUOTES = "'\""  # of what users and their texts say
_PLACEHOLDER = re.compile(r"\{(\w+)[^{}]*\}")
_language: str | None = None


def get_language() -> str:
    """The language set by ``set_language``, else that of the environment: POLYHEAD_LANG, LC_ALL, LC_MESSAGES, LANG."""
    if _language is not None:
        return _language
    for name in ("POLYHEAD_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        if value := os.environ.get(name):
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


def get_chosen_language() -> str | None:
    """The language set by ``set_language``, as ``--lang`` does; None where that of the environment counts."""
    return _language


def set_language(language: str | None) -> None:
    """Set the language of this process, a key of ``LANGUAGES``; None returns to that of the environment."""
    global _language
    _language = None if language is None else check_language(language)


def check_language(language: str) -> str:
    """The key of ``LANGUAGES`` for a tag such as zh, zh-CN or en_US; UserError for another language."""
    tag = re.split(r"[-_.]", language.lower())[0]
    if tag not in LANGUAGES:
        hint = nearest(language, LANGUAGES)
        raise UserError(f"--lang: unknown language {language!r}{hint}; allowed: {', '.join(LANGUAGES)}")
    return tag


@cache
def load_catalog(language: str, subject: str | None = None) -> Mapping[str, str]:
    """English text to its translation: of one subject, a file of the locale, or of all; empty for English."""
    if language == "en":
        return {}
    catalog: dict[str, str] = {}
    for file in sorted((Path(__file__).parent / "locale" / language).glob("*.json")):
        if subject in (None, file.stem):
            catalog |= json.loads(file.read_text(encoding="utf-8"))
    return catalog


def tr(text: str, /, **values: Any) -> str:
    """The text in the current language, its ``{placeholders}`` filled with the values."""
    translated = load_catalog(get_language()).get(text, text)
    return translated.format(**values) if values else translated


def format_english(text: str, /, **values: Any) -> str:
    """The English text, its ``{placeholders}`` filled: for files and errors, where ``tr`` is for people."""
    return text.format(**values) if values else text


def translate_message(message: str, subject: str | None = None) -> str:
    """A finished English message in the current language; as it is where the catalog has no entry that matches.

    An entry matches if it is the message with ``{name}`` in place of what varies. The one with the most literal text wins.
    What a placeholder stands for is translated too if it is an entry of the errors itself, such as "a classifier".
    ``subject`` looks in one catalog only, for what placeholders stand for too, unless that is quoted; without it whole
    messages are found in all, patterns in ``MESSAGES``.
    """
    catalog = load_catalog(get_language(), subject)
    if message in catalog:
        return catalog[message]
    for pattern, translated in _patterns(get_language(), subject):
        if (match := pattern.fullmatch(message)) and all(map(is_balanced, match.groups())):
            words = load_catalog(get_language(), "errors")
            found = {name: words.get(word, word) for name, word in match.groupdict().items()}
            if subject:
                found = {
                    name: word if word[0] in QUOTES else translate_message(word, subject)
                    for name, word in found.items()
                }
            return translated.format(**found)
    return message


def translate_fact(text: str) -> str:
    """A name or a value from the README.md of a run, which is English, in the current language."""
    return tr(translate_message(text, "facts"))


def is_balanced(text: str) -> bool:
    """Whether each parenthesis that opens closes: a placeholder does not stand for half of a pair."""
    depths = [text.count("(", 0, i) - text.count(")", 0, i) for i in range(len(text) + 1)]
    return min(depths) == depths[-1] == 0


@cache
def _patterns(language: str, subject: str | None) -> list[tuple[re.Pattern[str], str]]:
    """The entries that have placeholders, as regular expressions, the most specific first."""
    catalog = {
        text: translated
        for name in ((subject,) if subject else MESSAGES)
        for text, translated in load_catalog(language, name).items()
    }
    entries = sorted(catalog, key=lambda text: -len(_PLACEHOLDER.sub("", text)))
    return [
        (_compile(text), _PLACEHOLDER.sub(r"{\1}", catalog[text]))
        for text in entries
        if _PLACEHOLDER.search(text)
    ]


def _compile(text: str) -> re.Pattern[str]:
    pieces = re.split(r"(\{\w+[^{}]*\})", text)
    seen: set[str] = set()
    out = []
    for piece in pieces:
        name = _PLACEHOLDER.fullmatch(piece)
        if not name:
            out.append(re.escape(piece))
        elif name[1] in seen:
            out.append(f"(?P={name[1]})")
        else:
            seen.add(name[1])
            out.append(f"(?P<{name[1]}>.+?)")
    return re.compile("".join(out), re.DOTALL)
