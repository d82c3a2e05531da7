"""Parse ``--budget``, ``--vary norm=layernorm,rmsnorm`` and ``--design 'name: key=value ...'``.

An axis is one key of the recipe with several values; a design is a name with changes to the recipe. Imports
no torch.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel

from polyhead.config import yaml_io
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import MAX_INT, UserError, did_you_mean, is_command_line
from polyhead.core.i18n import tr
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
        form = "'name: key=value key=value'" if is_command_line() else "{'name': ['key=value']}"
        raise UserError(f"--design {text!r}: expected {form}")
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
        # the same key in another section, an alias of other toolkits, or a similar spelling
        home = next((section for section in _LOOKUP_SECTIONS if inner in list_section_keys(section)), None)
        hint = f"; did you mean '{home}.{inner}'?" if home else ""
        hint = hint or alias_hint(inner, Recipe, sections if len(sections) == 1 else ())
        fields = [field for section in sections for field in list_section_keys(section)]
        every_key = "polyhead train --keys" if is_command_line() else "dump_yaml() of a Recipe"
        hint = hint or did_you_mean(inner, fields) or f"; {every_key} lists all"
        raise UserError(f"{option} {key}: unknown key{hint}")
    if full in _RESERVED_KEYS:
        raise UserError(f"{option} {key}: compare sets {full} itself{_RESERVED_KEYS[full]}")
    if full in _FIXED_DATA_KEYS:
        raise UserError(
            f"{option} {key}: designs are evaluated on the same text, which {full} changes; use a separate "
            "comparison"
        )
    return full


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


BudgetKind = Literal["recipe", "time", "steps", "tokens", "flops"]

_TIME_UNITS = {
    1: ("s", "sec", "secs", "second", "seconds"),
    60: ("m", "min", "mins", "minute", "minutes"),
    3600: ("h", "hour", "hours"),
}
_SECONDS_PER_UNIT = {name: factor for factor, names in _TIME_UNITS.items() for name in names}
_COUNT_UNITS: dict[str, BudgetKind] = {
    "step": "steps", "steps": "steps", "token": "tokens", "tokens": "tokens", "flop": "flops",
    "flops": "flops",
}  # fmt: skip
_SI_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15}
_AMOUNT_PATTERN = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)([a-z]+)")


class Budget(NamedTuple):
    """Training budget of every design.

    ``amount`` is seconds of training, steps, target tokens or training FLOPs, depending on ``kind``; the kind
    "recipe" takes the steps of the recipe and has no amount.
    """

    kind: BudgetKind
    amount: float = 0.0

    def __str__(self) -> str:
        text, amount = self._message_parts()
        return text.format(amount=amount)

    def localize(self) -> str:
        """The budget as text in the language of the pages."""
        text, amount = self._message_parts()
        return tr(text, amount=amount)

    def _message_parts(self) -> tuple[str, str]:
        if self.kind == "recipe":
            return "the steps of the recipe", ""
        if self.kind == "time":
            hours, minutes = divmod(round(self.amount / 60), 60)
            if hours:
                return "{amount} of training", f"{hours} h {minutes:02} min" if minutes else f"{hours} h"
            is_long = self.amount >= 60
            amount = f"{self.amount / 60:.3g} min" if is_long else f"{self.amount:g} s"
            return "{amount} of training", amount
        if self.kind == "flops":
            return "{amount} FLOPs of training", f"{self.amount:.3g}"
        unit = "target tokens" if self.kind == "tokens" else "steps"
        return f"{{amount}} {unit}", f"{self.amount:,.0f}"


def read_budget(text: str | None) -> Budget:
    """Parse ``10m``, ``1h30m``, ``2000 steps``, ``3M tokens``, ``1e14 FLOPs``; None: the recipe's length."""
    if text is None:
        return Budget("recipe")
    compact = "".join(text.lower().split())
    pieces: list[re.Match[str]] = []
    end = 0
    while piece := _AMOUNT_PATTERN.match(compact, end):
        pieces.append(piece)
        end = piece.end()
    if not pieces or end < len(compact):
        raise _budget_error(text)
    values = [float(re.sub("[_,]", "", piece[1])) for piece in pieces]
    units = [piece[2] for piece in pieces]
    if all(unit in _SECONDS_PER_UNIT for unit in units):
        seconds = sum(value * _SECONDS_PER_UNIT[unit] for value, unit in zip(values, units, strict=True))
        return _validate_budget(Budget("time", seconds), text)
    for name, kind in _COUNT_UNITS.items():
        prefix = units[0].removesuffix(name)
        if len(pieces) == 1 and units[0].endswith(name) and prefix in _SI_PREFIXES:
            return _validate_budget(Budget(kind, values[0] * _SI_PREFIXES[prefix]), text)
    raise _budget_error(text, units[-1])


def _validate_budget(budget: Budget, text: str) -> Budget:
    if budget.amount <= 0 or (budget.kind in ("steps", "tokens") and budget.amount < 1):
        raise UserError(f"--budget {text!r}: expected more than 0")
    if budget.amount > (MAX_INT if budget.kind == "steps" else 1e30):
        raise UserError(f"--budget {text!r}: too large")
    return Budget(budget.kind, float(round(budget.amount))) if budget.kind == "steps" else budget


def _budget_error(text: str, unit: str = "") -> UserError:
    hint = did_you_mean(unit, [*_SECONDS_PER_UNIT, *_COUNT_UNITS]) if len(unit) > 2 else ""
    return UserError(
        f"--budget {text!r}: expected a time (90s, 10m, 1h30m), steps (2000steps), target tokens (3Mtokens) "
        f"or training FLOPs (1e14flops){hint}"
    )
