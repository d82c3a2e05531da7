"""Convert pydantic's validation errors to messages for users."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, did_you_mean, find_similar, format_value
from polyhead.core.key_aliases import aliased_keys, hint_text

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_EXPECTED = {
    "int": "an integer",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text (put it in quotes)",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "path": "a path",
}

_RANGES = {
    "greater_than_equal": "at least",
    "greater_than": "more than",
    "less_than_equal": "at most",
    "less_than": "less than",
}

# pydantic's location entries for members of a union
_UNION_BRANCH = re.compile(r"bool|float|constrained-int|(literal|lax-or-strict)\[.*\]")
_UNION_TAG = re.compile(r"\[\w+\]")  # of a member that is chosen by the form of the value


def from_validation_error(
    error: ValidationError, root: type[BaseModel] | None = None, prefix: str = ""
) -> UserError:
    """Convert a pydantic error to one line per problem: ``train.lr: 'fast' is not a number``.

    ``root`` is the model that was validated, used to suggest keys; ``prefix`` is put before each key.
    """
    messages: dict[Any, str] = {}
    problems = error.errors(include_url=False)
    for problem in problems:
        problem["loc"] = tuple(part for part in problem["loc"] if not _UNION_TAG.fullmatch(str(part)))
    misspelt = [
        str(entry["loc"][-1])
        for entry in problems
        if entry["type"] == "extra_forbidden" and not entry["loc"][1:]
    ]
    meant = {find_similar(name, root.model_fields) for name in misspelt if root}
    for problem in problems:
        if problem["loc"] and problem["loc"][0] in meant:
            continue  # not missing, but misspelt
        *parents, last = problem["loc"] or [""]
        # report only the first invalid entry of a list
        key = tuple(parents) if isinstance(last, int) else (problem["loc"], problem["type"])
        if _UNION_BRANCH.fullmatch(str(last)):
            problem["loc"] = key = tuple(parents)
            if key in messages:
                messages[key] += (
                    ", and "
                    f"{_problem_text(problem, root).removeprefix(format_value(problem['input'])).strip()}"
                )
        messages.setdefault(key, _format_problem(problem, root, prefix))
    return UserError("\n".join(dict.fromkeys(messages.values())))


def _format_problem(problem: Any, root: type[BaseModel] | None, prefix: str) -> str:
    key = ": ".join(filter(None, [prefix, format_loc(problem["loc"])]))
    message = _problem_text(problem, root)
    return f"{key}: {message}" if key else message


def _problem_text(problem: Any, root: type[BaseModel] | None) -> str:
    kind, context, value_text = problem["type"], problem.get("ctx", {}), format_value(problem["input"])
    if kind == "extra_forbidden" and root is not None:
        *parents, name = problem["loc"]
        section = _section_at(root, parents)
        allowed = [*section.model_fields, *getattr(section, "shorthands", ())]
        hint = alias_hint(name, root, parents) or did_you_mean(name, allowed)
        return f"unknown key{hint or '; known: ' + ', '.join(allowed)}"
    if kind == "missing":
        return "missing; this key has no default"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        allowed = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        hint = did_you_mean(problem["input"], allowed, kind="".join(map(str, problem["loc"][-1:])))
        return f"{value_text} is not one of {', '.join(allowed)}{hint}"
    if kind == "too_short":
        return f"{value_text} is empty; give at least {context['min_length']}"
    if kind == "too_long":
        return f"{value_text} is too long; give at most {context['max_length']}"
    if kind in _RANGES:
        return f"{value_text} is out of range: expected {_RANGES[kind]} {problem['msg'].split()[-1]}"
    if kind.split("_")[0] in _EXPECTED:
        decimal = str(problem["input"]).replace(",", ".", 1)
        meant = f"; did you mean {decimal}?" if re.fullmatch(r"-?\d+,\d+", str(problem["input"])) else ""
        return f"{value_text} is not {_EXPECTED[kind.split('_')[0]]}{meant}"
    return f"{value_text}: {problem['msg']}"


def format_loc(loc: Iterable[str | int]) -> str:
    """Format a pydantic location as a key: ``("data", "train", 0)`` -> ``data.train[0]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.removeprefix(".")


def alias_hint(name: object, root: type[BaseModel], loc: Iterable[str | int] = ()) -> str:
    """``; did you mean 'train.lr'?`` for a key of another toolkit or of another section; else empty."""
    loc = list(loc)
    if nested_hint := _nested_spelling(str(name), _section_at(root, loc)):
        return nested_hint
    parent_prefix = "".join(f"{part}." for part in loc if isinstance(part, str))
    keys = aliased_keys(name)
    for key in keys:
        if word := _spelling_in_section(key, root, parent_prefix):
            return hint_text({key: word})
    return _section_hint(str(name), root) or hint_text({key: key for key in keys})


def _nested_spelling(name: str, section_class: type[BaseModel]) -> str:
    """``; write norm: {name: ..., eps: ...}`` for norm.eps, the spelling of command-line overrides."""
    head, _, rest = name.partition(".")
    if not rest or head not in section_class.model_fields:
        return ""
    kind = section_class.model_fields[head].annotation
    part = Choice in (kind, *typing.get_args(kind))
    return f"; write {head}: {{{'name: ..., ' * part}{rest}: ...}}" if part or section_type(kind) else ""


def _spelling_in_section(key: str, root: type[BaseModel], prefix: str) -> str:
    """The spelling of a recipe key in the section ``prefix`` or in section ``root``; empty for other keys."""
    head, _, rest = key.partition(".")
    if head not in root.model_fields or (rest and not section_type(root.model_fields[head].annotation)):
        return rest if re.split(r"[.=]", rest)[0] in root.model_fields else ""
    inner = key.removeprefix(prefix)
    return "" if inner == key else key if "." in inner else inner


def _section_hint(key: str, root: type[BaseModel]) -> str:
    """``; did you mean 'model.d_model'?`` if a section has the key; sections always present come first."""
    inside = [
        (name, field.annotation, section_type(field.annotation)) for name, field in root.model_fields.items()
    ]
    homes = {
        name: kind is not section for name, kind, section in inside if section and key in section.model_fields
    }
    first = [name for name, is_optional in homes.items() if is_optional == min(homes.values())]
    return hint_text({f"{name}.{key}": f"{name}.{key}" for name in first})


def _section_at(root: type[BaseModel], loc: Iterable[str | int]) -> type[BaseModel]:
    """The section class at a location."""
    for part in loc:
        if isinstance(part, str):  # a number is an index into a list of sections
            section = section_type(root.model_fields[part].annotation, include_lists=True)
            assert section is not None, f"{part} is not a section"
            root = section
    return root


def section_type(annotation: Any, include_lists: bool = False) -> type[BaseModel] | None:
    """The section class of a key, optional or not; None for a key with a plain value.

    With ``include_lists`` also the class of the entries of a list of sections.
    """
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return section_type(inside[0], include_lists)
    if origin in (typing.Union, types.UnionType) or (include_lists and origin in (list, tuple)):
        return next((section for part in inside if (section := section_type(part, include_lists))), None)
    return None
