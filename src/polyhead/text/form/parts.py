"""Forms by name. A part takes its options and gives a grammar, as llguidance writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from polyhead.errors import UserError
from polyhead.registry import FORM
from polyhead.text.form.library import llguidance

BLANKS = r"[ \n\t]{0,16}"  # some models never stop saying blanks where nothing keeps them from it


def _schema(given: Any) -> Any:
    """A schema, or that of a file."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(Path(given).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{given}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{given} is no JSON: {error}") from None


@contextmanager
def _written(name: str) -> Iterator[None]:
    """What a form says that JSON or a grammar cannot hold is a UserError."""
    try:
        yield
    except UnicodeEncodeError:
        raise UserError(f"form {name!r}: half of a surrogate pair is not Unicode text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"form {name!r}: {error}") from None


Schema = Annotated[dict[str, Any], BeforeValidator(_schema)]


@FORM.register("json")
def json_object(*, schema: Schema | None = None) -> str:
    """JSON: an object, or what a JSON Schema describes.

    Keys come in the order of the schema. What of a schema cannot be kept, such as ``not``, is refused.

    Equation: p(x_t) = 0 where no JSON of the schema begins with x_1 ... x_t
    Paper: Geng et al., 2025 (JSONSchemaBench)
    When: several fields are filled in
    Recipe: {task: language-model, generation: {form: {name: json, schema: {type: object, properties: {age: {type: integer}}}}}}
    Options:
      schema: a JSON Schema, or the name of its file; any object if not given
    """
    matcher, asked = llguidance().LLMatcher, {"type": "object"} if schema is None else schema
    with _written("json"):
        wanted = json.dumps(asked, ensure_ascii=False, allow_nan=False)
        wanted.encode()  # what is no text is told in a line, not with the whole schema
        return str(matcher.grammar_from_json_schema(wanted, overrides={"whitespace_pattern": BLANKS}))


@FORM.register("regex")
def regex(*, pattern: str) -> str:
    """What a regular expression matches as a whole.

    Equation: p(x_t) = 0 where no match begins with x_1 ... x_t
    Paper: Willard and Louf, 2023
    When: dates, numbers, codes
    Recipe: {task: language-model, generation: {form: {name: regex, pattern: "[0-9]{4}-[0-9]{2}"}}}
    Options:
      pattern: a regular expression without references to groups; of what stands around, it can say nothing
    """
    return _matching("regex", pattern)


@FORM.register("choice")
def choice(*, among: list[str]) -> str:
    """One of some texts.

    Several of them, as beams find them, may be the same text in other tokens.

    Equation: p(x_t) = 0 where none of the texts begins with x_1 ... x_t
    Paper: De Cao et al., 2021
    When: a question has few answers
    Recipe: {task: language-model, generation: {form: {name: choice, among: ["yes", "no"]}}}
    Options:
      among: the texts
    """
    if not among or not all(among):
        raise UserError(f"form 'choice': among is {among}, wanted texts, none of them empty")
    return _matching("choice", "|".join(map(re.escape, among)))


@FORM.register("grammar")
def grammar(*, lark: str) -> str:
    """What a grammar describes.

    It is written as llguidance reads it: rules as of Lark, and schemas in them behind ``%json``.

    Equation: p(x_t) = 0 where no sentence of the grammar begins with x_1 ... x_t
    Paper: Geng et al., 2023
    When: calls of functions, formulas, small languages
    Recipe: {task: language-model, generation: {form: {name: grammar, lark: 'start: "(" /[0-9]+/ ")"'}}}
    Options:
      lark: the rules; that of ``start`` is the whole
    """
    matcher = llguidance().LLMatcher
    with _written("grammar"):
        return str(matcher.grammar_from_lark(lark))


def _matching(name: str, pattern: str) -> str:
    matcher = llguidance().LLMatcher
    with _written(name):
        return str(matcher.grammar_from_regex(pattern))
