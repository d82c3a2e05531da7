"""Texts come as a list: one text is none, and what can be read only once would be read as nothing the second time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

from polyhead.errors import MOST, UserError, show


def check_texts(texts: object, verb: str, lists: int = 1) -> None:
    """A list, and of nothing but texts. ``verb`` takes so many of them, or is an option: ``prefix=``."""
    check_listed(texts, verb, lists)
    assert isinstance(texts, Collection)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"text {number} is {type(text).__name__}, wanted a string")


def check_texts_or_ids(texts: object, verb: str, known: int) -> None:
    """A list of texts, or of the ids of their tokens, of which there are so many."""
    check_listed(texts, verb)
    assert isinstance(texts, Collection)
    for number, text in enumerate(texts):
        if isinstance(text, str):
            continue
        if not _listed(text):
            raise UserError(
                f"text {number} is {type(text).__name__}, wanted a string or the ids of its tokens"
            )
        for one in text:
            if isinstance(one, bool) or not isinstance(one, Integral) or not 0 <= int(one) < known:
                raise UserError(f"text {number} has no token {show(one)}; this model knows 0 to {known - 1}")


def check_each(given: Sequence[object], verb: str) -> None:
    """What a verb is given are lists of texts, but for a later one that is None."""
    there = [one for number, one in enumerate(given) if one is not None or not number]
    for texts in there:
        check_texts(texts, verb, len(there))


def check_listed(texts: object, verb: str, lists: int = 1) -> None:
    """Something that has a length and an order and may be read again, or a UserError says how ``verb``, which takes so many lists, is called."""
    if isinstance(texts, str | bytes):
        one = '["..."]'
        way = one if verb.endswith("=") else f"({', '.join(lists * [one])})"
        raise UserError(f"{verb.removesuffix('=')} wants a list of texts, got one text; write {verb}{way}")
    if not isinstance(texts, Collection) or isinstance(texts, set | frozenset):
        way = "list(texts)" if verb.endswith("=") else "(list(texts))"
        hint = f"; write {verb}{way}" if isinstance(texts, Iterable) else ""
        raise UserError(f"{verb.removesuffix('=')} wants a list of texts, got {type(texts).__name__}{hint}")


@contextmanager
def check_ids(ids: object, verb: str, rows: bool = False) -> Iterator[None]:
    """Where what ``verb`` does with ids fails within, a UserError says what stands in their place: in that of ``rows`` of them, or of one."""
    try:
        yield
    except (TypeError, ValueError, OverflowError):
        wanted = "a list of ids for each text" if rows else "the ids of one text"
        raise UserError(f"{verb} wants {wanted}, got {_came(ids, verb, rows)}") from None


def _came(ids: Any, verb: str, rows: bool) -> str:
    """What is no list of ids, no list of such lists, or the first thing in it that is no id; and the way out."""
    given = ids.tolist() if hasattr(ids, "tolist") else ids
    if not _listed(given) or not (entries := list(given)):
        return show(given)
    if rows and isinstance(entries[0], Integral):
        return f"those of one; write {verb}([ids])"
    if not rows and _listed(entries[0]):
        return f"those of several; write {verb}(ids[0])"
    within = [one for entry in entries for one in (entry if rows and _listed(entry) else [entry])]
    bad = (one for one in within if not isinstance(one, Integral) or not 0 <= int(one) <= MOST)
    return f"{show(next(bad, entries[0]))} among them"


def _listed(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def stop_texts(stop: object) -> list[str]:
    """What ends an output: one text, or several."""
    stops = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Iterable) else None
    if stops is None or not all(isinstance(one, str) for one in stops):
        raise UserError(
            f"stop is {show(stop)}; wanted a text, or a list of texts that ends nothing where it is empty"
        )
    return stops


def has_lone_surrogate(text: str) -> bool:
    """Whether a string holds half a surrogate pair, which no encoding of Unicode can write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
