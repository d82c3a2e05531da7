"""Rewrite number bounds of JSON Schemas that llguidance gets wrong.

llguidance 1.9.1 lets an exclusive integer bound itself be written if the other bound is less than
1 away: ``{"exclusiveMinimum": 0, "maximum": 0.5}`` yields 0, and ``{"minimum": -0.5, "exclusiveMaximum": 0}``
yields -0. Here such a bound becomes an inclusive one that is a billionth further in.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import chain, permutations, product
from typing import Any

from polyhead.core.errors import UserError

_STEP = 1e-9  # from the exclusive bound to the inclusive one that replaces it
_NAMED_SCHEMAS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_LITERAL_KEYS = ("const", "enum", "default", "examples")  # their values are data, not schemas
_EMBEDDED_SCHEMA = re.compile(r"%json\s*(?={)")
_Schema = Mapping[str, Any]


def tighten_bounds(schema: Any) -> Any:
    """The schema with the bounds rewritten; a UserError if the bounds of one number are in several schemas.

    Numbers between the bound and its replacement are no longer written.
    """
    _check_combined_bounds(schema, schema)
    return _rewrite(schema)


def tighten_embedded_bounds(lark: str) -> str:
    """A Lark grammar with the bounds of its ``%json`` schemas rewritten."""
    decoder, parts, end = json.JSONDecoder(), list[str](), 0
    for match in _EMBEDDED_SCHEMA.finditer(lark):
        try:
            schema, schema_end = decoder.raw_decode(lark, match.end())
        except (ValueError, RecursionError):  # the library describes the error
            continue
        if match.start() >= end and (tightened := tighten_bounds(schema)) != schema:
            parts += [lark[end : match.end()], json.dumps(tightened, ensure_ascii=False)]
            end = schema_end
    return "".join([*parts, lark[end:]])


def _rewrite(value: Any) -> Any:
    if isinstance(value, list):
        return [_rewrite(item) for item in value]
    if not isinstance(value, dict):
        return value
    schema: dict[str, Any] = {}
    for key, entries in value.items():
        if key in _NAMED_SCHEMAS and isinstance(entries, dict):
            schema[key] = {name: _rewrite(entry) for name, entry in entries.items()}
        else:
            schema[key] = entries if key in _LITERAL_KEYS else _rewrite(entries)
    for key, replacement, opposite in [*_find_faulty(_number_bounds(schema))]:
        sign, bound = (1 if replacement == "minimum" else -1), schema.pop(key)
        schema[replacement] = bound + sign * max(_STEP, 4 * math.ulp(bound))
        if sign * (schema[opposite] - schema[replacement]) <= 0:
            raise UserError(
                f"JSON Schema: {key}: {bound:g} and {opposite}: {schema[opposite]} leave no number that can "
                "be written"
            )
    return schema


def _number_bounds(schema: _Schema) -> dict[str, float]:
    """The bounds of a schema by keyword; empty if it allows no fractions."""
    if "type" in schema and "number" not in schema["type"]:
        return {}
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    return {
        name: value
        for name in names
        if isinstance(value := schema.get(name), int | float) and not isinstance(value, bool)
    }


def _find_faulty(
    bounds: Mapping[str, float], other_bounds: Mapping[str, float] | None = None
) -> Iterator[tuple[str, str, str]]:
    """Yield the keywords of each bound that llguidance gets wrong, of its replacement and of the other bound.

    The other bound is one of ``other_bounds``, by default of the same schema.
    """
    others = bounds if other_bounds is None else other_bounds
    for sign, end, opposite_end in ((1, "inimum", "aximum"), (-1, "aximum", "inimum")):
        bound = bounds.get(f"exclusiveM{end}")
        if bound is None or sign * bound < 0 or (isinstance(bound, float) and not bound.is_integer()):
            continue
        low, high = sorted((bound, bound + sign))
        for name in (f"exclusiveM{opposite_end}", f"m{opposite_end}"):
            if name in others and low < others[name] < high:
                yield f"exclusiveM{end}", f"m{end}", name
                break


def _check_combined_bounds(value: Any, root: Any) -> None:
    """Raise a UserError if schemas that apply to one number have such bounds together."""
    if isinstance(value, list):
        for item in value:
            _check_combined_bounds(item, root)
    if not isinstance(value, dict):
        return
    base = list(_iter_conjunction(value, root, []))
    branches = [
        list(_iter_conjunction(branch, root, []))
        for schema in base
        for key in ("anyOf", "oneOf")
        for branch in _get_list(schema, key)
    ]
    for schema, other in chain(
        permutations(base, 2), *(chain(product(base, branch), product(branch, base)) for branch in branches)
    ):
        for key, _, name in _find_faulty(_number_bounds(schema), _number_bounds(other)):
            raise UserError(
                f"JSON Schema: {key}: {schema[key]} and {name}: {other[name]} of one number are in two "
                f"schemas, which are combined without excluding {schema[key]}; put both into one schema"
            )
    for key, entries in value.items():
        if key in _NAMED_SCHEMAS and isinstance(entries, dict):
            _check_combined_bounds([*entries.values()], root)
        elif key not in _LITERAL_KEYS:
            _check_combined_bounds(entries, root)


def _iter_conjunction(schema: Any, root: Any, visited_ids: list[int]) -> Iterator[_Schema]:
    """Yield a schema and those that must hold with it, of ``allOf`` and ``$ref``."""
    if not isinstance(schema, dict) or id(schema) in visited_ids:
        return
    visited_ids.append(id(schema))
    yield schema
    for part in [*_get_list(schema, "allOf"), _resolve_reference(schema.get("$ref"), root)]:
        yield from _iter_conjunction(part, root, visited_ids)


def _get_list(schema: _Schema, key: str) -> list[Any]:
    return schema[key] if isinstance(schema.get(key), list) else []


def _resolve_reference(reference: Any, root: Any) -> Any:
    """The schema that a local reference such as #/$defs/price names; None if there is none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    schema = root
    for name in filter(None, reference[1:].split("/")):
        key = name.replace("~1", "/").replace("~0", "~")
        schema = schema.get(key) if isinstance(schema, dict) else None
    return schema
