"""From keys of config.json to our config and back: one table a family, used in both directions.

A row says where the value of a key stands with us: ``d_model`` is a field of ModelConfig, ``norm.eps`` an option of a part. A
value that has two places, with a space between them, is written from the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from polyhead.config import ModelConfig
from polyhead.hf.given import Given
from polyhead.hf.pattern import part

Fields = dict[str, Any]

# a block whose sub-layers stand side by side behind one norm
ONE_NORM = {"name": "parallel", "one_norm": True}


class Key(NamedTuple):
    """A row: a key, or some that say one thing together. Most are made by the functions below; what is more than a value
    and its place is two functions, which stand in a row like the others.
    """

    read: Callable[[Given, Fields], Fields] = lambda given, fields: {}  # what it adds to the fields before it
    write: Callable[[ModelConfig], dict[str, Any]] = lambda config: {}


def read(keys: Iterable[Key], given: Given) -> Fields:
    """config.json -> fields of ModelConfig. Options are added to the part before, a part by its name takes its place."""
    fields: Fields = {}
    for key in keys:
        for field, new in key.read(given, fields).items():
            old = fields.get(field)
            if isinstance(new, dict) and "name" not in new:
                new = ({"name": old} if isinstance(old, str) else old or {}) | new
            fields[field] = new
    return fields


def write(keys: Iterable[Key], config: ModelConfig) -> dict[str, Any]:
    """Fields of ModelConfig -> config.json."""
    return {theirs: value for key in keys for theirs, value in key.write(config).items()}


def placed(places: str, value: Any) -> Fields:
    """The value at its places."""
    split = [place.partition(".") for place in places.split()]
    return {field: {option: value} if option else value for field, _, option in split}


def found(config: ModelConfig, places: str, default: Any = None) -> Any:
    """The value at the first of the places; of attention and block those of the first layer, of a part without it the default."""
    field, _, option = places.split()[0].partition(".")
    value = part(config, field, 0) if field in ("attention", "block") else getattr(config, field)
    if option == "name":
        return value.name
    return value.options.get(option, default) if option else value


def size(
    theirs: str, places: str, default: int | None = None, *, least: int = 1, optional: bool = False
) -> Key:
    """A whole number, which must be there if it has no default. An optional one is none where it is null, or not given and
    without a default."""
    return _valued(theirs, places, default, optional, lambda given: given.size(theirs, default, least))


def number(theirs: str, places: str, default: float | None = None, *, optional: bool = False) -> Key:
    """A number, optional as a size may be."""
    return _valued(theirs, places, default, optional, lambda given: given.number(theirs, default))


def _valued(
    theirs: str, places: str, default: float | None, optional: bool, value: Callable[[Given], float]
) -> Key:
    def there(given: Given) -> bool:
        return not optional or given.has(theirs) or not (default is None or given.null(theirs))

    return Key(
        lambda given, fields: placed(places, value(given) if there(given) else None),
        lambda config: {theirs: found(config, places, default)},
    )


def flag(theirs: str, places: str, default: bool, *, yes: Any = True, no: Any = False) -> Key:
    """True or false, which are ``yes`` and ``no`` with us."""
    return Key(
        lambda given, fields: placed(places, yes if given.flag(theirs, default) else no),
        lambda config: {theirs: (value := found(config, places)) is True or value == yes},
    )


def tied(default: bool) -> Key:
    """Whether the embeddings and the head of a decoder are one."""
    tie = flag("tie_word_embeddings", "tie_embeddings", default, yes="all", no="none")
    return tie._replace(write=lambda config: {"tie_word_embeddings": config.tie_embeddings != "none"})


def norm(theirs: str, name: str, eps: float) -> Key:
    """The norm of that name, of which the key is eps."""
    return Key(
        lambda given, fields: {"norm": {"name": name, "eps": given.number(theirs, eps)}},
        lambda config: {theirs: found(config, "norm.eps", eps)},
    )


def width(theirs: str, default: int | None = None) -> Key:
    """The width of the embeddings, which is d_model without a default; where it is d_model, no map stands between them."""

    def read(given: Given, fields: Fields) -> Fields:
        wide = given.size(theirs, default or fields["d_model"])
        return {"d_embedding": None if wide == fields["d_model"] else wide}

    return Key(read, lambda config: {theirs: config.embedding_width})


def only(theirs: str, value: Any, *, said: bool = False) -> Key:
    """A key for which one value is built; it is written where readers ask for it (``said``)."""

    def check(given: Given, fields: Fields) -> Fields:
        given.only(theirs, value)
        return {}

    return Key(check, lambda config: {theirs: value} if said else {})


def passed(*theirs: str, places: str = "") -> Key:
    """Keys that matter in training alone, or that nobody reads; with a place they are written as what stands there."""

    def ask(given: Given, fields: Fields) -> Fields:
        given.passed(*theirs)
        return {}

    return Key(ask, lambda config: dict.fromkeys(theirs, found(config, places)) if places else {})


def unsaid(**values: Any) -> Key:
    """What a file without these keys means, for the rows behind this one."""

    def assume(given: Given, fields: Fields) -> Fields:
        given.assume(**values)
        return {}

    return Key(assume)


def fixed(**fields: Any) -> Key:
    """What all models of a family have, and no key says."""
    return Key(lambda given, before: fields)


DECODER = fixed(kind="decoder", attention="softmax", norm_first=True, scale_embedding=False, init="normal")
