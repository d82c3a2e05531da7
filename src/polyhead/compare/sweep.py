"""Parse ``--vary norm=layernorm,rmsnorm`` and ``--design 'name: key=value ...'``. Imports no torch.

An axis is one key of the recipe with several values; a design is a name with changes to the recipe.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pydantic import BaseModel

from polyhead.config import yaml_io
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, did_you_mean
from polyhead.core.messages import alias_hint

OPENING, CLOSING, _QUOTES = "{[(", "}])", "\"'"
# sections in which a key without section is looked up, in this order
_LOOKUP_SECTIONS: tuple[str, ...] = ("model", "train", "tokenizer", "generation", "data")
TOP_LEVEL_KEYS = ("init_from", "distill", "task")  # keys outside of these sections
# keys that compare sets itself, and what to use instead, if anything
_RESERVED_KEYS = {
    "train.seed": "; use --seeds",
    "train.steps": "; use --budget",
    "train.epochs": "; use --budget",
    "train.eval_every": "; use --budget",
    "train.save_every": "; use --budget",
    "train.log_every": "; use --budget",
    "train.best_metric": ": the weights with the lowest loss are used",
    "train.patience": ": designs do not stop early",
    "train.eval_bleu": ": designs are evaluated at the end",
    "train.tensorboard": ": the curves are in compare.html",
    "train.log": ": the curves are in compare.html",
}
# keys that determine the evaluation text, on which metrics are compared and units paired
_FIXED_DATA_KEYS = {
    f"data.{name}"
    for name in (
        "root", "valid", "valid_fraction", "test", "format", "target_lang", "source", "target", "label",
        "document_separator"
    )
}  # fmt: skip


class Axis(NamedTuple):
    """One key of the recipe, with its section, and its values as typed."""

    key: str
    values: tuple[str, ...]


class DesignSpec(NamedTuple):
    """Name of a design and its changes to the recipe: ``("norm=rmsnorm", ("model.norm=rmsnorm",))``."""

    name: str
    changes: tuple[str, ...]


def read_axis(text: str) -> Axis:
    """Parse ``attention=softmax,{name: softmax, window: 8}`` into the two values of model.attention."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--vary {text!r}: expected key=value,value, e.g. norm=layernorm,rmsnorm")
    value_texts = [value.strip() for value in split_outside_brackets(values, lambda c: c == ",")]
    if not all(value_texts):
        raise UserError(f"--vary {text!r}: a value is empty")
    return Axis(resolve_key(key.strip(), "--vary"), tuple(dict.fromkeys(value_texts)))


def read_design(text: str) -> DesignSpec:
    """Parse ``lstm: model.block=lstm position=none`` into the design "lstm" with two changes."""
    name, colon, rest = text.partition(":")
    name = " ".join(name.split())
    changes = list(filter(None, split_outside_brackets(rest, str.isspace)))
    if not colon or not name or "=" in name or not changes:
        raise UserError(f"--design {text!r}: expected 'name: key=value key=value'")
    full_changes = []
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not value:
            raise UserError(f"--design {name}: {change!r} is not key=value")
        full_changes.append(f"{resolve_key(key, '--design')}={value}")
    return DesignSpec(name, tuple(full_changes))


def split_outside_brackets(text: str, is_separator: Callable[[str], bool]) -> list[str]:
    """Split a text at the characters for which ``is_separator`` is true, outside of brackets and quotes."""
    pieces, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in _QUOTES:
            quote = c
        else:
            depth += (c in OPENING) - (c in CLOSING)
        if is_separator(c) and not quote and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += c
    if quote or depth:
        raise UserError(f"{text.strip()!r}: a bracket or quote is not closed")
    return pieces


def list_section_keys(section: str) -> list[str]:
    """Keys of a section of the recipe; the model has the key ``preset`` as well."""
    kind = Recipe.model_fields[section].annotation
    assert isinstance(kind, type) and issubclass(kind, BaseModel)
    return [*kind.model_fields, *(["preset"] if section == "model" else [])]


def resolve_key(key: str, option: str) -> str:
    """Resolve ``norm`` to ``model.norm``, ``lr`` to ``train.lr``; options may follow: ``position.theta``."""
    head, _, rest = key.partition(".")
    inner, sections, full = head, _LOOKUP_SECTIONS, key
    if head in TOP_LEVEL_KEYS:
        is_known = True  # the rest of the key is validated with the recipe
        if key == "task":
            raise UserError(
                f"{option} task: all designs have the same task; its options can be varied, e.g. task.mask"
            )
    elif head in _LOOKUP_SECTIONS and rest:
        inner, sections = rest.split(".")[0], (head,)
        is_known = inner in list_section_keys(head)
    else:
        home = next((section for section in _LOOKUP_SECTIONS if head in list_section_keys(section)), None)
        full, is_known = f"{home}.{key}", home is not None
    if not is_known:
        raise UserError(
            f"{option} {key}: unknown "
            f"key{_suggest_key(inner, sections) or '; polyhead train --keys lists all'}"
        )
    if full in _RESERVED_KEYS:
        raise UserError(f"{option} {key}: compare sets {full} itself{_RESERVED_KEYS[full]}")
    if full in _FIXED_DATA_KEYS:
        raise UserError(
            f"{option} {key}: designs are evaluated on the same text, which {full} changes; use a separate "
            "comparison"
        )
    return full


def _suggest_key(key: str, sections: Sequence[str]) -> str:
    """Suggest a key: the same one in another section, an alias of other toolkits, or a similar spelling."""
    for section in _LOOKUP_SECTIONS:
        if key in list_section_keys(section):
            return f"; did you mean '{section}.{key}'?"
    return alias_hint(key, Recipe, sections if len(sections) == 1 else ()) or did_you_mean(
        key, [field for section in sections for field in list_section_keys(section)]
    )


def describe_change(key: str, value: str) -> str:
    """Format a change for display: ``attention=softmax(window=8)``."""
    short = key.partition(".")[2] or key
    try:
        parsed = yaml_io.parse_yaml(value)
    except UserError as error:
        raise UserError(f"{short}={value}: {error}") from None
    if isinstance(parsed, dict) and "name" in parsed:
        options = ", ".join(f"{k}={v}" for k, v in Choice.from_config(parsed).options.items())
        value = f"{parsed['name']}({options})" if options else str(parsed["name"])
    return f"{short}={value}"


def vary_one_axis(axes: Sequence[Axis]) -> Iterator[DesignSpec]:
    """Yield a design for each value of each axis, with everything else as in the base."""
    for axis in axes:
        for value in axis.values:
            yield DesignSpec(describe_change(axis.key, value), (f"{axis.key}={value}",))


def expand_grid(axes: Sequence[Axis], is_base: Callable[[str], bool]) -> Iterator[DesignSpec]:
    """Yield a design for every combination of values; its name omits changes that satisfy ``is_base``."""
    merged: dict[str, dict[str, None]] = {}
    for axis in axes:
        merged.setdefault(axis.key, {}).update(dict.fromkeys(axis.values))
    for values in itertools.product(*merged.values()):
        changes = [f"{key}={value}" for key, value in zip(merged, values, strict=True)]
        different = [change for change in changes if not is_base(change)]
        name = " ".join(describe_change(*change.split("=", 1)) for change in different)
        if different:
            yield DesignSpec(name, tuple(changes))
