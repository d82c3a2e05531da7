"""Texts come as a list: one text is none, and what can be read only once would be read as nothing the second time."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from polyhead.errors import UserError, show


def check_texts(texts: object, verb: str) -> None:
    """A list, and of nothing but texts."""
    check_listed(texts, verb)
    assert isinstance(texts, Collection)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"text {number} is {type(text).__name__}, wanted a string")


def check_listed(texts: object, verb: str) -> None:
    """Something that has a length and an order and may be read again, or a UserError says how ``verb`` is called with what came."""
    if isinstance(texts, str):
        raise UserError(f"{verb} wants a list of texts, got one text; write {verb}([text])")
    if not isinstance(texts, Collection) or isinstance(texts, set | frozenset):
        hint = f"; write {verb}(list(texts))" if isinstance(texts, Iterable) else ""
        raise UserError(f"{verb} wants a list of texts, got {type(texts).__name__}{hint}")


def stop_texts(stop: object) -> list[str]:
    """What ends an output: one text, or several."""
    stops = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Iterable) else None
    if stops is None or not all(isinstance(one, str) for one in stops):
        raise UserError(
            f"stop is {show(stop)}; wanted a text, or a list of texts that ends nothing where it is empty"
        )
    return stops
