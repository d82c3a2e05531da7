"""What went wrong, said to a person: what came, what is allowed, the nearest right thing."""

from __future__ import annotations

import difflib
import math
import numbers
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from polyhead.elsewhere import keys_of, name_of, told

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


class UserError(ValueError):
    """A mistake the user can mend. The command line prints the message alone and exits with 2."""


MOST = 2**31 - 1
"""What nothing here is counted beyond: larger numbers overflow deep inside of other libraries."""


@contextmanager
def at(key: str) -> Iterator[None]:
    """Where a UserError within says what is wrong with the value of a key, it names the key as well."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{key}: {error}") from None


def bounded(value: Any) -> Any:
    """The value, unless it is a whole number beyond ``MOST`` or no finite one."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{value} is not a finite number")
    if isinstance(value, int) and abs(value) > MOST:
        raise UserError(f"{value} is out of range: should be at most {MOST}")
    return value


def check_whole(name: str, value: object, least: int | None = None) -> None:
    """What is given in Python is a whole number, which a truth value is not, and ``least`` or more."""
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Integral)
        or (least is not None and int(value) < least)
    ):
        more = "" if least is None else f", {least} or more"
        raise UserError(f"{name} is {show(value)}; wanted a whole number{more}")


def nearest(
    name: object, allowed: Iterable[str], cutoff: float = 0.5, before: str = "", kind: str = ""
) -> str:
    """``; did you mean 'rope'?`` if one of the allowed names is close, else nothing; ``before`` is put before it.

    Close are names that have half of their letters in common, in order; of three letters more, for two of them any word may have.
    Four letters with which a single name begins stand for it. What one of a ``kind`` is called elsewhere is nearest of all.
    """
    word, known = str(name).lower(), {str(one).lower(): str(one) for one in allowed}
    cutoff = max(cutoff, 0.55) if len(word) <= 3 else cutoff
    near = [ours] if (ours := name_of(kind, name)) in known else []
    near = near or ([one for one in known if one.startswith(word)] if len(word) > 3 and cutoff <= 0.6 else [])
    near = near if len(near) == 1 else difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"; did you mean {before + known[near[0]]!r}?" if near else ""


def unknown(what: str, name: object, allowed: Iterable[str]) -> UserError:
    """The error for a name that is not among those allowed, with the nearest one that is."""
    return UserError(f"unknown {what} {show(name)}{among(name, allowed, what)}")


def among(name: object, allowed: Iterable[str], kind: str = "") -> str:
    """``; known: ...``, all that a name could be, behind the nearest of them if one is near."""
    allowed = sorted(allowed)
    hint, known = nearest(name, allowed, kind=kind), ", ".join(allowed) or "none"
    return f"{hint} Known: {known}" if hint else f"; known: {known}"


def show(value: object) -> str:
    """The value as a person would type it in YAML, cut short when it is long."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else reprlib.repr(value)


_NOT = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text (put it in quotes)",
    "list": "a list",
    "tuple": "a list",
    "dict": "a section of keys",
    "model": "a section of keys",
    "path": "a path",
}


BRANCH = re.compile(r"bool|literal\[.*\]")  # pydantic's names of types where a value may have one of several


def explain(error: ValidationError, root: type[BaseModel] | None = None, under: str = "") -> UserError:
    """What pydantic found, one line a problem: ``train.lr: 'fast' is not a number``.

    ``root`` is the model that was read, for the names of its keys; ``under`` goes before each place.
    """
    told: dict[Any, str] = {}
    problems = error.errors(include_url=False)
    misspelt = [
        str(one["loc"][-1]) for one in problems if one["type"] == "extra_forbidden" and not one["loc"][1:]
    ]
    meant = {
        near for name in misspelt if root for near in difflib.get_close_matches(name, root.model_fields, 1)
    }
    for problem in problems:
        if problem["loc"] and problem["loc"][0] in meant:
            continue  # it is not missing, but misspelt
        *place, last = problem["loc"] or [""]
        # where nothing of a list is right, its first entry is told
        key = tuple(place) if isinstance(last, int) else (problem["loc"], problem["type"])
        if BRANCH.fullmatch(str(last)):
            problem["loc"] = key = tuple(place)
            if key in told:
                told[key] += f", and {_said(problem, root).removeprefix(show(problem['input'])).strip()}"
        told.setdefault(key, _line(problem, root, under))
    return UserError("\n".join(dict.fromkeys(told.values())))


def _line(problem: Any, root: type[BaseModel] | None, under: str) -> str:
    place = ": ".join(filter(None, [under, path(problem["loc"])]))
    said = _said(problem, root)
    return f"{place}: {said}" if place else said


def _said(problem: Any, root: type[BaseModel] | None) -> str:
    kind, context, came = problem["type"], problem.get("ctx", {}), show(problem["input"])
    if kind == "extra_forbidden" and root is not None:
        *place, name = problem["loc"]
        found = _at(root, place)
        allowed = [*found.model_fields, *getattr(found, "shorthands", ())]
        return f"unknown key{called(name, root, place) or nearest(name, allowed) or '; known: ' + ', '.join(allowed)}"
    if kind == "missing":
        return "missing; it has no default"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        allowed = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        near = nearest(problem["input"], allowed, kind="".join(map(str, problem["loc"][-1:])))
        return f"{came} is not one of {', '.join(allowed)}{near}"
    if kind == "too_short":
        return f"{came} is empty; give at least {context['min_length']}"
    if kind == "too_long":
        return f"{came} is too long; give at most {context['max_length']}"
    if {"ge", "gt", "le", "lt"} & set(context):
        return f"{came} is out of range: {problem['msg'].removeprefix('Input ')}"
    if kind.split("_")[0] in _NOT:
        decimal = str(problem["input"]).replace(",", ".", 1)
        meant = f"; did you mean {decimal}?" if re.fullmatch(r"-?\d+,\d+", str(problem["input"])) else ""
        return f"{came} is not {_NOT[kind.split('_')[0]]}{meant}"
    return f"{came}: {problem['msg']}"


def path(loc: Iterable[str | int]) -> str:
    """``("data", "train", 0)`` as a person would write it: ``data.train[0]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.removeprefix(".")


def called(name: object, root: type[BaseModel], place: Iterable[str | int] = ()) -> str:
    """``; did you mean 'train.lr'?`` where other toolkits call a key by that name, or another section has it; else nothing."""
    place = list(place)
    if written := _undotted(str(name), _at(root, place)):
        return written
    above = "".join(f"{part}." for part in place if isinstance(part, str))
    keys = keys_of(name)
    for key in keys:
        if word := _within(key, root, above):
            return told({key: word})
    return _home(str(name), root) or told({key: key for key in keys})


def _undotted(name: str, found: type[BaseModel]) -> str:
    """``; write norm: {name: ..., eps: ...}`` for norm.eps, which is how changes on the command line are written."""
    from polyhead.registry import Choice

    head, _, rest = name.partition(".")
    if not rest or head not in found.model_fields:
        return ""
    kind = found.model_fields[head].annotation
    part = Choice in (kind, *typing.get_args(kind))
    return f"; write {head}: {{{'name: ..., ' * part}{rest}: ...}}" if part or section(kind) else ""


def _within(key: str, root: type[BaseModel], above: str) -> str:
    """How a key of a recipe is written in the section ``above``, or in the one that ``root`` is; nothing for a key of another."""
    head, _, rest = key.partition(".")
    if head not in root.model_fields or (rest and not section(root.model_fields[head].annotation)):
        return rest if re.split(r"[.=]", rest)[0] in root.model_fields else ""
    inner = key.removeprefix(above)
    return "" if inner == key else key if "." in inner else inner


def _home(key: str, root: type[BaseModel]) -> str:
    """``; did you mean 'model.d_model'?`` when the key lives in a section, first in one that is always there."""
    inside = [
        (name, field.annotation, section(field.annotation)) for name, field in root.model_fields.items()
    ]
    homes = [(name, kind is not found) for name, kind, found in inside if found and key in found.model_fields]
    return f"; did you mean '{min(homes, key=lambda home: home[1])[0]}.{key}'?" if homes else ""


def _at(root: type[BaseModel], loc: Iterable[str | int]) -> type[BaseModel]:
    """The section at that place."""
    for part in loc:
        if isinstance(part, str):  # a number is a place in a list of sections
            found = section(root.model_fields[part].annotation, lists=True)
            assert found is not None, f"{part} is not a section"
            root = found
    return root


def section(annotation: Any, lists: bool = False) -> type[BaseModel] | None:
    """The section that a key opens, be it always there or not; None for a key that is a value.

    With ``lists`` also the section that each entry of a list is.
    """
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return section(inside[0], lists)
    if origin in (typing.Union, types.UnionType) or (lists and origin in (list, tuple)):
        return next((found for part in inside if (found := section(part, lists))), None)
    return None
