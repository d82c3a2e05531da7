"""What is varied: ``--vary norm=layernorm,rmsnorm`` and ``--design 'name: key=value ...'`` as designs. No torch here.

An axis is one key of the recipe with several values; a design is a name and changes to the recipe.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pydantic import BaseModel

from polyhead import document
from polyhead.errors import UserError, called, nearest
from polyhead.recipe import Recipe
from polyhead.registry import Choice

OPENING, CLOSING, QUOTES = "{[(", "}])", "\"'"
# where a bare key is looked for, in this order
SECTIONS: tuple[str, ...] = ("model", "train", "tokenizer", "generation", "data")
WHOLE = ("start", "distill", "task")  # keys that are none of a section
# what compare sets itself, and what to use instead if there is anything
OURS = {
    "train.seed": "; use --seeds",
    "train.steps": "; use --budget",
    "train.epochs": "; use --budget",
    "train.eval_every": "; use --budget",
    "train.save_every": "; use --budget",
    "train.log_every": "; use --budget",
    "train.metric": ": the lowest loss chooses the weights",
    "train.patience": ": no design stops early",
    "train.eval_bleu": ": what is learned is measured at the end",
    "train.tensorboard": ": the curves are in compare.html",
    "train.log": ": the curves are in compare.html",
}
# what all designs are measured on: numbers of other texts would stand side by side, and be paired
MEASURED = {
    f"data.{name}"
    for name in (
        "root", "valid", "valid_share", "test", "format", "target_lang", "source", "target", "label", "documents"
    )
}  # fmt: skip


class Axis(NamedTuple):
    """One key of the recipe, in full, and the values it takes, as they were typed."""

    key: str
    values: tuple[str, ...]


class Design(NamedTuple):
    """A name and what it changes in the recipe: ``("norm=rmsnorm", ("model.norm=rmsnorm",))``."""

    name: str
    changes: tuple[str, ...]


def read_axis(text: str) -> Axis:
    """``attention=softmax,{name: softmax, window: 8}`` -> the axis of model.attention with two values."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--vary {text!r}: expected key=value,value, e.g. norm=layernorm,rmsnorm")
    found = [value.strip() for value in split(values, lambda c: c == ",")]
    if not all(found):
        raise UserError(f"--vary {text!r}: a value is empty")
    return Axis(full_key(key.strip(), "--vary"), tuple(dict.fromkeys(found)))


def read_design(text: str) -> Design:
    """``lstm: model.block=lstm position=none`` -> the design "lstm" with two changes."""
    name, colon, rest = text.partition(":")
    name = " ".join(name.split())
    changes = list(filter(None, split(rest, str.isspace)))
    if not colon or not name or "=" in name or not changes:
        raise UserError(f"--design {text!r}: expected 'name: key=value key=value'")
    given = []
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not value:
            raise UserError(f"--design {name}: {change!r} is not key=value")
        given.append(f"{full_key(key, '--design')}={value}")
    return Design(name, tuple(given))


def split(text: str, at: Callable[[str], bool]) -> list[str]:
    """The pieces of a text between the characters that ``at`` names, outside brackets and quotes."""
    pieces, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in QUOTES:
            quote = c
        else:
            depth += (c in OPENING) - (c in CLOSING)
        if at(c) and not quote and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += c
    if quote or depth:
        raise UserError(f"{text.strip()!r}: a bracket or quote is not closed")
    return pieces


def fields(section: str) -> list[str]:
    """The keys of a section of the recipe; a preset of sizes is a key of the model too."""
    kind = Recipe.model_fields[section].annotation
    assert isinstance(kind, type) and issubclass(kind, BaseModel)
    return [*kind.model_fields, *(["preset"] if section == "model" else [])]


def full_key(key: str, option: str) -> str:
    """``norm`` -> ``model.norm``, ``lr`` -> ``train.lr``; options of parts follow: ``position.theta``."""
    head, _, rest = key.partition(".")
    inner, place, full = head, SECTIONS, key
    if head in WHOLE:
        known = True  # what follows is checked with the recipe
        if key == "task":
            raise UserError(
                f"{option} task: designs have one task in common; its options can be varied, as task.mask"
            )
    elif head in SECTIONS and rest:
        inner, place = rest.split(".")[0], (head,)
        known = inner in fields(head)
    else:
        home = next((section for section in SECTIONS if head in fields(section)), None)
        full, known = f"{home}.{key}", home is not None
    if not known:
        raise UserError(
            f"{option} {key}: unknown key{_near(inner, place) or '; polyhead train --keys lists all'}"
        )
    if full in OURS:
        raise UserError(f"{option} {key}: compare sets {full} itself{OURS[full]}")
    if full in MEASURED:
        raise UserError(
            f"{option} {key}: designs are measured on the same text, which {full} has a part in; "
            "make it another comparison"
        )
    return full


def _near(key: str, sections: Sequence[str]) -> str:
    """The nearest key: the same one in another section, one that is called so elsewhere, or one that is spelt alike in these."""
    for section in SECTIONS:
        if key in fields(section):
            return f"; did you mean '{section}.{key}'?"
    return called(key, Recipe, sections if len(sections) == 1 else ()) or nearest(
        key, [field for section in sections for field in fields(section)]
    )


def named(key: str, value: str) -> str:
    """One change as a person reads it: ``attention=softmax(window=8)``."""
    short = key.partition(".")[2] or key
    try:
        read = document.parse(value)
    except UserError as error:
        raise UserError(f"{short}={value}: {error}") from None
    if isinstance(read, dict) and "name" in read:
        options = ", ".join(f"{k}={v}" for k, v in Choice.read(read).options.items())
        value = f"{read['name']}({options})" if options else str(read["name"])
    return f"{short}={value}"


def one_at_a_time(axes: Sequence[Axis]) -> Iterator[Design]:
    """Each value of each axis alone, everything else as in the base."""
    for axis in axes:
        for value in axis.values:
            yield Design(named(axis.key, value), (f"{axis.key}={value}",))


def grid(axes: Sequence[Axis], is_base: Callable[[str], bool]) -> Iterator[Design]:
    """Every combination of the values. The name leaves out what ``is_base`` says the base has as well."""
    merged: dict[str, dict[str, None]] = {}
    for axis in axes:
        merged.setdefault(axis.key, {}).update(dict.fromkeys(axis.values))
    for values in itertools.product(*merged.values()):
        changes = [f"{key}={value}" for key, value in zip(merged, values, strict=True)]
        different = [change for change in changes if not is_base(change)]
        name = " ".join(named(*change.split("=", 1)) for change in different)
        if different:
            yield Design(name, tuple(changes))
