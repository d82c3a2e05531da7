"""Types of request fields: each is the validation of a field and its schema in /openapi.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    WrapValidator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import CoreSchema

from polyhead.chat.base import (
    MESSAGE_ROLE_ALIASES,
    MESSAGE_ROLES,
    TOOL_CHOICES,
    Message,
    Tool,
    parse_messages,
    validate_tool_choice,
    validate_tools,
)
from polyhead.config.generation_config import MAX_TOKEN_ID
from polyhead.core.errors import UserError, format_value

STOPS, STOP_CHARS, STOP_TOKENS = 16, 256, 64
NULL_SCHEMA, TEXT_SCHEMA = {"type": "null"}, {"type": "string"}

T = TypeVar("T")
NonEmpty = Annotated[list[T], Field(min_length=1, fail_fast=True)]


class Accepts:
    """Validates a field as ``input_type``, which is its schema too, and converts it to the type of the field.

    It has the one wording of a value that is not of a type: it is not ``description``. With ``item``, the
    message about an item of a list: a format string of its value and its index.
    """

    def __init__(
        self,
        input_type: Any,
        description: str | Callable[[Any], str],
        item: str = "",
        convert: Callable[[Any], Any] | None = None,
    ) -> None:
        self.input_type, self.description, self.item, self.convert = input_type, description, item, convert

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(Annotated[self.input_type, WrapValidator(self._validate)])

    def _validate(self, value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            accepted = handler(value)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
        else:
            return accepted if self.convert is None else self.convert(accepted)
        if problem["type"] == "value_error":
            raise UserError(str(problem["ctx"]["error"]))
        if self.item and problem["loc"]:
            index = problem["loc"][0]
            raise UserError(self.item.format(value=format_value(value[index]), index=index))
        name = self.description if isinstance(self.description, str) else self.description(value)
        raise UserError(f"{format_value(value)} is not {name}")


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _check_stops(stops: list[str]) -> list[str]:
    if len(stops) > STOPS or not all(0 < len(stop) <= STOP_CHARS for stop in stops):
        raise UserError(f"expected at most {STOPS} texts of 1 to {STOP_CHARS} characters")
    return stops


def _check_stop_ids(ids: list[int]) -> list[int]:
    if len(ids) > STOP_TOKENS:
        raise UserError(f"expected at most {STOP_TOKENS} token ids")
    return ids


def _get_document_text(document: dict[str, Any]) -> str:
    if not isinstance(document.get("text"), str):
        raise ValueError("no text")
    return str(document["text"])


def allow_nulls(schema: dict[str, Any]) -> None:
    """Allow null in every field of an object's JSON Schema that is not required."""
    for name in schema["properties"].keys() - set(schema.get("required", ())):
        field = dict(schema["properties"][name])
        if "type" in field:
            field["type"] = [field["type"], "null"]
            if "enum" in field:
                field["enum"] = [*field["enum"], None]
        else:
            value = {key: field.pop(key) for key in ("$ref", "const", "enum") if key in field}
            field["anyOf"] = [*field.get("anyOf", [value]), NULL_SCHEMA]
        schema["properties"][name] = field


class ObjectFields(NamedTuple):
    """The fields of one kind of object in a request: its schema, and the names that have no effect."""

    schema: dict[str, Any]
    known_names: Set[str] = frozenset()  # names that have an effect
    # sent by OpenAI's clients: reported if not empty, but not with ``strict``
    client_names: frozenset[str] = frozenset()
    # not in the schema, but known: also what this service itself writes, and gets back unchanged
    own_names: frozenset[str] = frozenset()
    # unsupported and would change the answer -> the values that have no effect
    neutral_values: Mapping[str, tuple[Any, ...]] = {}
    # name of an object or of a list of them -> their noun in messages ("": the name itself), and their fields
    inner: Mapping[str, tuple[str, ObjectFields]] = {}


class Contains(NamedTuple):
    """Marks a field that contains an object or a list of them; their unknown fields are reported."""

    noun: str  # of the items in messages; "": the name of the field
    fields: ObjectFields


def object_fields(
    required: str,
    properties: dict[str, Any],
    client_names: str = "",
    own_names: str = "",
    **inner: tuple[str, ObjectFields],
) -> ObjectFields:
    """Declare the fields of an object; those that are not ``required`` may be null."""
    schema = {"type": "object", "required": required.split(), "properties": properties}
    allow_nulls(schema)
    names = frozenset(client_names.split()), frozenset(own_names.split())
    return ObjectFields(schema, properties.keys(), *names, inner=inner)


def array_schema(items: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a list with at least one item."""
    return {"type": "array", "items": items, "minItems": 1}


_A_TEXT_OR_TEXTS = "a text or a list of texts"
TextList = Annotated[list[str], Accepts(str | NonEmpty[str], _A_TEXT_OR_TEXTS, convert=_as_list)]
_PromptIds = NonEmpty[Annotated[int, Field(json_schema_extra={"minimum": 0})]]
Prompts = Annotated[
    list[str | list[int]],
    Accepts(
        str | NonEmpty[str] | _PromptIds | NonEmpty[_PromptIds] | SkipJsonSchema[NonEmpty[str | _PromptIds]],
        "a text, a list of texts, a list of token ids, or a list of such lists",
        convert=lambda value: [value] if isinstance(value, str) or isinstance(value[0], int) else value,
    ),
]
_Pair = Annotated[list[str], Field(min_length=2, max_length=2)]
Pairs = Annotated[
    list[str] | list[tuple[str, str]],
    Accepts(
        str | NonEmpty[str] | NonEmpty[_Pair],
        lambda value: (
            "a list of pairs of texts"
            if isinstance(value, list) and value and all(isinstance(pair, list) for pair in value)
            else _A_TEXT_OR_TEXTS
        ),
        convert=lambda value: [tuple(one) if isinstance(one, list) else one for one in _as_list(value)],
    ),
]
_TextObject = Annotated[
    dict[str, Any],
    AfterValidator(_get_document_text),
    WithJsonSchema(object_fields("text", {"text": TEXT_SCHEMA}).schema),
]
Documents = Annotated[
    list[str],
    Accepts(
        NonEmpty[str | _TextObject],
        "a list of texts",
        "document {index} is {value}, expected a text or an object with one",
    ),
]
Stops = Annotated[
    list[str],
    Accepts(
        Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": STOP_CHARS})]
        | Annotated[list[str], Field(json_schema_extra={"minItems": 1, "maxItems": STOPS})],
        _A_TEXT_OR_TEXTS,
        convert=lambda value: _check_stops(_as_list(value)),
    ),
]
TermTable = Annotated[dict[str, list[str]], Accepts(dict[str, TextList], 'an object such as {"dog": "Hund"}')]
LayerList = Annotated[
    list[int] | str,
    Accepts(
        Annotated[Literal["all"], WithJsonSchema({"const": "all"})] | NonEmpty[int],
        'a list of layer numbers such as [0, -1], or "all"',
    ),
]
_TokenId = Annotated[
    int, Field(ge=0, le=MAX_TOKEN_ID, json_schema_extra=lambda schema: schema.pop("maximum", None))
]
_ID_WORDS = ("a list of token ids", "{value} at index {index} is not a token id")
Ids = Annotated[list[int], Accepts(NonEmpty[_TokenId], *_ID_WORDS)]
StopTokenIds = Annotated[
    list[int],
    Accepts(
        Annotated[list[_TokenId], Field(fail_fast=True, json_schema_extra={"maxItems": STOP_TOKENS})],
        *_ID_WORDS,
        convert=_check_stop_ids,
    ),
]

MESSAGE_OVERHEAD = 16  # additional characters per message, about the cost of its special tokens
_FUNCTION_NAME = {"name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}}
_FUNCTION_TYPE = {"type": {"const": "function"}}
PART_FIELDS = object_fields(
    "type text", {"type": {"const": "text"}, "text": TEXT_SCHEMA}, "prompt_cache_breakpoint"
)
CALLED_FUNCTION_FIELDS = object_fields(
    "name", _FUNCTION_NAME | {"arguments": TEXT_SCHEMA}, "parsed_arguments"
)
CALL_FIELDS = object_fields(
    "function",
    {"id": TEXT_SCHEMA, **_FUNCTION_TYPE, "function": CALLED_FUNCTION_FIELDS.schema},
    "index",
    function=("the function", CALLED_FUNCTION_FIELDS),
)
MESSAGE_FIELDS = object_fields(
    "role",
    {
        "role": {"enum": [*MESSAGE_ROLES, *MESSAGE_ROLE_ALIASES]},
        "content": {"anyOf": [TEXT_SCHEMA, array_schema(PART_FIELDS.schema)]},
        "tool_calls": {"type": "array", "items": CALL_FIELDS.schema},
        "tool_call_id": TEXT_SCHEMA,
        "reasoning": TEXT_SCHEMA,
        "reasoning_content": TEXT_SCHEMA,
    },
    "name refusal annotations audio function_call parsed",
    content=("part", PART_FIELDS),
    tool_calls=("call", CALL_FIELDS),
)
FUNCTION_FIELDS = object_fields(
    "name",
    _FUNCTION_NAME | {"description": TEXT_SCHEMA, "parameters": {"type": "object"}},
    own_names="strict",
)
TOOL_FIELDS = object_fields(
    "function",
    {**_FUNCTION_TYPE, "function": FUNCTION_FIELDS.schema},
    function=("the function", FUNCTION_FIELDS),
)
CHOSEN_FUNCTION_FIELDS = object_fields("name", dict(_FUNCTION_NAME))
TOOL_CHOICE_FIELDS = object_fields(
    "function",
    {**_FUNCTION_TYPE, "function": CHOSEN_FUNCTION_FIELDS.schema},
    function=("", CHOSEN_FUNCTION_FIELDS),
)


def parse_tools(value: Any) -> tuple[Tool, ...]:
    """Parse function tools, without their unknown fields, which would be a part of the prompt."""
    names = {*FUNCTION_FIELDS.known_names, *FUNCTION_FIELDS.own_names}
    tools = []
    for tool in validate_tools(value):
        function = {key: part for key, part in tool.definition["function"].items() if key in names}
        kind = {key: part for key, part in tool.definition.items() if key == "type"}
        tools.append(tool._replace(definition=kind | {"function": function}))
    return tuple(tools)


MessageList = Annotated[
    list[Message],
    PlainValidator(parse_messages),
    WithJsonSchema(array_schema(MESSAGE_FIELDS.schema)),
    Contains("message", MESSAGE_FIELDS),
]
ToolList = Annotated[
    tuple[Tool, ...],
    PlainValidator(parse_tools),
    WithJsonSchema({"type": "array", "items": TOOL_FIELDS.schema}),
    Contains("tool", TOOL_FIELDS),
]
ToolChoiceField = Annotated[
    str | list[str],
    PlainValidator(validate_tool_choice),
    WithJsonSchema({"anyOf": [{"enum": list(TOOL_CHOICES)}, TOOL_CHOICE_FIELDS.schema]}),
    Contains("", TOOL_CHOICE_FIELDS),
]


DEFAULT_FROM_RUN = "of_run"
"""Marks a field whose default is that of the run; /openapi.json contains none."""


def int_field(
    default: int,
    minimum: int,
    limit_name: str = "",
    maximum: int = MAX_TOKEN_ID,
    description: str = "",
    is_fixed: bool = False,
) -> Any:
    """Field of an integer.

    ``limit_name`` is the attribute of ``Limits`` that bounds it. Without ``is_fixed`` the default is that of
    the run.
    """
    extra: dict[str, Any] = ({"limit": limit_name} if limit_name else {}) | (
        {} if is_fixed else {DEFAULT_FROM_RUN: True}
    )
    return Field(default, ge=minimum, le=maximum, description=description, json_schema_extra=extra)
