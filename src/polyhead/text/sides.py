"""What stands around the two texts of an encoder-decoder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from polyhead.errors import UserError, nearest
from polyhead.text.specials import DECODERS

if TYPE_CHECKING:
    from polyhead.text.tokenizer import Tokenizer


SHOWN = 24  # languages that a mistake lists
TARGET_LANGUAGE = re.compile(">>.+<<")  # how tokens of OPUS-MT are spelled
LANGUAGE = re.compile(r">>.+<<|__\w+__|[a-z]{2,3}_[A-Z]\w+")  # and those of M2M100, mBART and NLLB


class Sides(NamedTuple):
    """Special tokens about a source and about a target.

    The encoder reads ``before text after``. The decoder reads ``start opening text`` and says ``opening text end``.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    start: int
    opening: tuple[int, ...]  # such as the language of the target; mostly none
    forced: bool  # whether the opening is given to the decoder; else it learns to say it
    end: int

    def source(self, ids: Sequence[int]) -> list[int]:
        """What the encoder reads."""
        return [*self.before, *ids, *self.after]

    def read(self, ids: Sequence[int]) -> list[int]:
        """What the decoder reads."""
        return [self.start, *self.opening, *ids]

    def said(self, ids: Sequence[int]) -> list[int]:
        """What it says."""
        return [*self.opening, *ids, self.end]

    def plain(self, ids: Sequence[int]) -> list[int]:
        """What the decoder said without its opening, if it has one."""
        n = len(self.opening)
        return list(ids[n:] if tuple(ids[:n]) == self.opening else ids)

    @property
    def added(self) -> tuple[int, int]:
        """How many tokens a source and a target have in a batch besides their own."""
        return len(self.before) + len(self.after), 1 + len(self.opening)

    @property
    def most(self) -> int:
        """The same, on the longer side."""
        return max(self.added)


def between(tokenizer: Tokenizer, source: str | None = None, target: str | None = None) -> Sides:
    """The sides of a tokenizer whose special tokens name languages, with those two where its file has others.

    The language of a source stands where another one stood, or before the text. That of a target is what the decoder
    starts with, where that is a language, or what it is made to say first. A model that must be told one, and is not, is a
    UserError.
    """
    sides, roles = tokenizer.sides, {i for role, i in tokenizer.ids.items() if role not in DECODERS}
    languages = {i: tokenizer.tokens([i])[0] for i in tokenizer.special_ids if i not in roles}
    if told := {i: token for i, token in languages.items() if TARGET_LANGUAGE.fullmatch(token)}:
        return _told(sides, told, source, target)
    if source is not None:
        i, there = _language(source, languages), languages.keys() & {*sides.before, *sides.after}
        before, after = (
            tuple(i if x in there else x for x in around) for around in (sides.before, sides.after)
        )
        sides = sides._replace(before=before if there else (i, *before), after=after)
    if target is not None:
        i = _language(target, languages)
        sides = (
            sides._replace(start=i, opening=())
            if sides.start in languages
            else sides._replace(opening=(i,), forced=True)
        )
    elif not sides.forced and sides.start not in languages:
        _check_chosen([token for token in languages.values() if LANGUAGE.fullmatch(token)])
    return sides


def undecided(tokenizer: Tokenizer) -> str:
    """Why it is not settled which language a translation is in where none is named; nothing where it is."""
    try:
        between(tokenizer)
    except UserError as error:
        return str(error)
    return ""


def languages(tokenizer: Tokenizer) -> dict[str, list[str]]:
    """The names of those that a ``source`` and a ``target`` may be in, as far as their spelling shows; empty: no choice."""
    found = list(filter(LANGUAGE.fullmatch, tokenizer.tokens(tokenizer.special_ids)))
    told = list(filter(TARGET_LANGUAGE.fullmatch, found))
    names = {"source": [] if told else found, "target": told or found}
    return {side: sorted(map(_bare, tokens)) for side, tokens in names.items()}


def settled_languages(tokenizer: Tokenizer) -> dict[str, str]:
    """The ``source`` and ``target`` of a translation where none is named, by their names in ``languages``; empty: not told."""
    named = {i: name for i in tokenizer.special_ids if LANGUAGE.fullmatch(name := tokenizer.tokens([i])[0])}
    sides, told = tokenizer.sides, any(map(TARGET_LANGUAGE.fullmatch, named.values()))
    read, said = (*sides.before, *sides.after), (sides.start, *sides.opening)
    around = {"source": () if told else read, "target": read if told else said}
    return {side: next((_bare(named[i]) for i in ids if i in named), "") for side, ids in around.items()}


def _told(sides: Sides, languages: dict[int, str], source: str | None, target: str | None) -> Sides:
    """The sides of a model whose encoder is told the language to translate to, before the text (OPUS-MT)."""
    if source is not None:
        raise UserError(f"source language {source!r}: this model is told the language of the target alone")
    if target is not None:
        around = [i for i in sides.before if i not in languages]
        return sides._replace(before=(_language(target, languages), *around))
    if languages.keys().isdisjoint(sides.before):
        _check_chosen(list(languages.values()))
    return sides


def _check_chosen(tokens: Sequence[str]) -> None:
    """A UserError where there are several languages: which of them a translation is in would be by chance."""
    if len(tokens) > 1:
        names = sorted(map(_bare, tokens))
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise UserError(
            "this model translates to several languages; name the target's (--target-lang of translate, target in a request "
            f"to translate, or for all else --target-lang of import), one of {', '.join(names[:SHOWN])}{more}"
        )


def _language(name: str, languages: dict[int, str]) -> int:
    """The token of a language: de, __de__, >>de<<, or one that goes on as de_DE does."""
    names = {i: _bare(token) for i, token in languages.items()}
    exact = [i for i, token in languages.items() if name in (token, names[i])]
    found = exact or [i for i, bare in names.items() if bare.startswith(f"{name}_")]
    if not languages:
        raise UserError(
            f"language {name!r}: no token of this model names it, nor any other language: it translates one pair; leave it out"
        )
    if len(found) != 1:
        what = (
            f"{len(found)} languages of this model begin with it"
            if found
            else "no token of this model names it"
        )
        raise UserError(f"language {name!r}: {what}{nearest(name, names.values(), 0.6)}")
    return found[0]


def _bare(token: str) -> str:
    """A language without the marks of its token."""
    return token.strip("_<>")
