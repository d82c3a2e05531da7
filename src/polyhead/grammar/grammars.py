"""Grammars by name: a part takes its options and returns a grammar in llguidance's format."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from polyhead.core.atomic_io import read_linked_file
from polyhead.core.errors import UserError
from polyhead.core.extras import install_command
from polyhead.core.json_io import decode_json
from polyhead.core.option_types import check_option_file
from polyhead.core.output_paths import did_you_mean_path
from polyhead.core.registry import GRAMMAR
from polyhead.grammar.number_bounds import tighten_bounds, tighten_embedded_bounds

_GBNF_ROOT = re.compile(r"\A(?!.*^start\s*:[^:])(?=.*^\s*root\s*::=)", re.DOTALL | re.MULTILINE)
_MAX_SCHEMA_BYTES = 1 << 22
WHITESPACE_PATTERN = r"[ \n\t]{0,16}"  # without a limit some models generate whitespace forever


def import_llguidance(module: str = "") -> Any:
    """llguidance, or one of its modules; UserError with the install command if it is missing."""
    try:
        return importlib.import_module(f"llguidance.{module}" if module else "llguidance")
    except ModuleNotFoundError:
        raise UserError(f"a grammar needs llguidance: {install_command('grammar')}") from None


def _read_schema(value: Any) -> Any:
    """Return a schema, or load it if the value is a file name."""
    if not isinstance(value, str):
        return value
    try:
        return decode_json(read_linked_file(Path(check_option_file(value)), _MAX_SCHEMA_BYTES), value)
    except OSError as error:
        hint = did_you_mean_path(Path(value)) if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"{value}: {error.strerror}{hint}") from None


@contextmanager
def _wrap_errors(name: str) -> Iterator[None]:
    """Turn errors in options of a grammar to UserError."""
    try:
        yield
    except UnicodeEncodeError:
        raise UserError(f"grammar {name!r}: half of a surrogate pair is not valid Unicode") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"grammar {name!r}: {error}") from None


Schema = Annotated[dict[str, Any], BeforeValidator(_read_schema)]


@GRAMMAR.register("json")
def json_grammar(*, schema: Schema | None = None) -> str:
    """JSON: any object, or a value that matches a JSON Schema.

    Keys come in the order of the schema. Schema features that are not supported, such as ``not``, are an
    error. llguidance 1.9.1 writes the bound itself for an exclusive integer bound and another bound less than
    1 away: 0 for ``exclusiveMinimum: 0`` and ``maximum: 0.5``. Such a bound is replaced by an inclusive one
    that is 0.000000001 further in; if the two are in different schemas (``allOf``, ``$ref``), that is an
    error.

    Equation: p(x_t) = 0 where no JSON of the schema begins with x_1 ... x_t
    Paper: Geng et al., 2025 (JSONSchemaBench)
    When: the output has several fields
    Recipe: {task: language-model, generation: {grammar: {name: json, schema: {type: object, properties: {age:
      {type: integer}}}}}}
    Options:
      schema: a JSON Schema, or the name of its file; default: any object
    """
    matcher, json_schema = import_llguidance().LLMatcher, {"type": "object"} if schema is None else schema
    with _wrap_errors("json"):
        schema_json = json.dumps(tighten_bounds(json_schema), ensure_ascii=False, allow_nan=False)
        schema_json.encode()  # a lone surrogate raises a one-line error, without the whole schema
        overrides = {"whitespace_pattern": WHITESPACE_PATTERN}
        return str(matcher.grammar_from_json_schema(schema_json, overrides=overrides))


@GRAMMAR.register("regex")
def regex_grammar(*, pattern: str) -> str:
    """Text that matches a regular expression completely.

    Equation: p(x_t) = 0 where no match begins with x_1 ... x_t
    Paper: Willard and Louf, 2023
    When: dates, numbers, codes
    Recipe: {task: language-model, generation: {grammar: {name: regex, pattern: "[0-9]{4}-[0-9]{2}"}}}
    Options:
      pattern: a regular expression without backreferences and lookaround
    """
    return _compile_regex("regex", pattern)


@GRAMMAR.register("choice")
def choice_grammar(*, choices: list[str]) -> str:
    """One of several given texts.

    With beam search several hypotheses may be the same text in different tokens.

    Equation: p(x_t) = 0 where none of the texts begins with x_1 ... x_t
    Paper: De Cao et al., 2021
    When: there are few possible answers
    Recipe: {task: language-model, generation: {grammar: {name: choice, choices: ["yes", "no"]}}}
    Options:
      choices: the possible texts
    """
    if not choices or not all(choices):
        raise UserError(f"grammar 'choice': choices is {choices}, expected texts, none of them empty")
    return _compile_regex("choice", "|".join(map(re.escape, choices)))


@GRAMMAR.register("grammar")
def lark_grammar(*, lark: str) -> str:
    """Text of a context-free grammar.

    The grammar is in llguidance's format: Lark rules, with JSON Schemas after ``%json``. Rules in GBNF, the
    format of llama.cpp (``root ::= ...``), are converted.

    Equation: p(x_t) = 0 where no sentence of the grammar begins with x_1 ... x_t
    Paper: Geng et al., 2023
    When: function calls, formulas, small languages
    Recipe: {task: language-model, generation: {grammar: {name: grammar, lark: 'start: "(" /[0-9]+/ ")"'}}}
    Options:
      lark: the rules of the grammar; ``start`` is the start rule
    """
    matcher = import_llguidance().LLMatcher
    with _wrap_errors("grammar"):
        rules = _convert_gbnf(lark) if _GBNF_ROOT.search(lark) else lark
        return str(matcher.grammar_from_lark(tighten_embedded_bounds(rules)))


def _convert_gbnf(rules: str) -> str:
    """Convert rules in GBNF to Lark's format."""
    try:
        return str(import_llguidance("gbnf_to_lark").gbnf_to_lark(rules))
    except UserError:
        raise
    except Exception as error:  # the library has its own class, and bugs
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"the rules are not valid GBNF: {reason[:200]}") from None


def _compile_regex(name: str, pattern: str) -> str:
    matcher = import_llguidance().LLMatcher
    with _wrap_errors(name):
        return str(matcher.grammar_from_regex(pattern))
