"""Validate that inputs are lists of strings, not one string or a one-shot iterator."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

from polyhead.core.array_types import HasToList
from polyhead.core.errors import MAX_INT, UserError, format_value


def validate_text(name: str, text: object) -> None:
    """Raise UserError unless an argument is a string."""
    if not isinstance(text, str):
        raise UserError(f"{name} is {format_value(text)}; expected a text")


def validate_texts(texts: object, verb: str, num_lists: int = 1) -> None:
    """Raise UserError unless ``texts`` is a list of strings.

    ``verb`` is the function in the message, which takes ``num_lists`` lists, or an option such as
    ``prefix=``.
    """
    validate_list(texts, verb, num_lists)
    assert isinstance(texts, Collection)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UserError(f"text {number} is {type(text).__name__}, expected a string")


def validate_texts_or_ids(texts: object, verb: str, vocab_size: int) -> None:
    """Raise UserError unless ``texts`` is a list of strings or of lists of token ids below ``vocab_size``."""
    validate_list(texts, verb)
    assert isinstance(texts, Collection)
    for number, text in enumerate(texts, 1):
        if isinstance(text, str):
            continue
        if not _is_list(text):
            raise UserError(f"text {number} is {type(text).__name__}, expected a string or its token ids")
        for token_id in text:
            if (
                isinstance(token_id, bool)
                or not isinstance(token_id, Integral)
                or not 0 <= int(token_id) < vocab_size
            ):
                raise UserError(
                    f"text {number} has no token {format_value(token_id)}; the vocabulary has 0 to "
                    f"{vocab_size - 1}"
                )


def validate_each(arguments: Sequence[object], verb: str) -> None:
    """Validate all arguments of a function as lists of texts; all but the first may be None."""
    lists = [argument for number, argument in enumerate(arguments) if argument is not None or not number]
    for texts in lists:
        validate_texts(texts, verb, len(lists))


def validate_list(texts: object, verb: str, num_lists: int = 1) -> None:
    """Raise UserError, with the right call of ``verb``, unless texts are a list or other sized sequence."""
    if isinstance(texts, str | bytes):
        text_list = '["..."]'
        call = text_list if verb.endswith("=") else f"({', '.join(num_lists * [text_list])})"
        raise UserError(f"{verb.removesuffix('=')} expects a list of texts, got one text; write {verb}{call}")
    if not isinstance(texts, Collection) or isinstance(texts, set | frozenset | Mapping):
        call = "list(texts)" if verb.endswith("=") else "(list(texts))"
        is_iterable = isinstance(texts, Iterable) and not isinstance(texts, Mapping)
        hint = f"; write {verb}{call}" if is_iterable else ""
        raise UserError(f"{verb.removesuffix('=')} expects a list of texts, got {type(texts).__name__}{hint}")


@contextmanager
def validate_ids(ids: object, verb: str, is_batch: bool = False) -> Iterator[None]:
    """Context that turns errors of ``verb`` on invalid ids to UserError; ``is_batch``: of several texts."""
    try:
        yield
    except (TypeError, ValueError, OverflowError):
        expected = "a list of ids per text" if is_batch else "the ids of one text"
        raise UserError(f"{verb} expects {expected}, got {_describe_invalid(ids, verb, is_batch)}") from None


def _describe_invalid(ids: Any, verb: str, is_batch: bool) -> str:
    """Describe invalid ids (not a list, wrong nesting, or the first entry that is not an id), with a hint."""
    value = ids.tolist() if isinstance(ids, HasToList) else ids
    if not _is_list(value) or not (entries := list(value)):
        return format_value(value)
    if is_batch and isinstance(entries[0], Integral):
        return f"those of one; write {verb}([ids])"
    if not is_batch and _is_list(entries[0]):
        return f"those of several; write {verb}(ids[0])"
    flat = [
        token_id for entry in entries for token_id in (entry if is_batch and _is_list(entry) else [entry])
    ]
    invalid = (
        token_id
        for token_id in flat
        if not isinstance(token_id, Integral) or not 0 <= int(token_id) <= MAX_INT
    )
    return f"{format_value(next(invalid, entries[0]))} among them"


def _is_list(value: Any) -> bool:
    try:
        iter(value)  # an array without dimensions cannot be iterated
    except TypeError:
        return False
    return not isinstance(value, str | bytes)


def normalize_stop_strings(stop: object) -> list[str]:
    """Stop strings as a list, from one string or several."""
    stops = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Iterable) else None
    if stops is None or not all(isinstance(string, str) for string in stops):
        raise UserError(f"stop is {format_value(stop)}; expected a text or a list of texts (none if empty)")
    return stops


def has_lone_surrogate(text: str) -> bool:
    """Whether a string contains a lone surrogate, which no Unicode encoding can write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
