"""Field types of requests: validation, and the schema in /openapi.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from polyhead.chat.base import MESSAGE_ROLE_ALIASES, MESSAGE_ROLES, ROLES_WITHOUT_CONTENT, Message
from polyhead.chat.tools import (
    TOOL_CHOICES,
    Tool,
    drop_nulls,
    parse_tool_calls,
    validate_tool_choice,
    validate_tools,
)
from polyhead.config.generation_config import MAX_TOKEN_ID
from polyhead.core.errors import UserError, format_value
from polyhead.serve.openai.input_limits import SizedMessages

FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
STOPS, STOP_CHARS, STOP_TOKENS = 16, 256, 64


def parse_texts(value: Any) -> list[str]:
    """Return a text or a list of texts as a list."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{format_value(value)} is not a text or a list of texts")
    return texts


def parse_prompts(value: Any) -> list[str | list[int]]:
    """Return a text, a list of texts, a list of token ids or a list of such lists as a list."""
    prompts = value if isinstance(value, list) and value and not _is_token_ids(value) else [value]
    if not all(isinstance(prompt, str) or _is_token_ids(prompt) for prompt in prompts):
        raise UserError(
            f"{format_value(value)} is not a text, a list of texts, a list of token ids, or a list of such "
            "lists"
        )
    return prompts


def parse_tools(value: Any) -> tuple[Tool, ...]:
    """Parse function tools, without their unknown fields, which would be a part of the prompt."""
    return tuple(
        tool._replace(definition=_known_definition(tool.definition)) for tool in validate_tools(value)
    )


def _known_definition(definition: dict[str, Any]) -> dict[str, Any]:
    function = {key: value for key, value in definition["function"].items() if key in FUNCTION_FIELDS}
    return {key: definition[key] for key in definition if key == "type"} | {"function": function}


def parse_text_pairs(value: Any) -> list[str] | list[tuple[str, str]]:
    """Return a text or a list of texts as a list, or a list of pairs."""
    if isinstance(value, list) and value and all(isinstance(pair, list) for pair in value):
        if any(len(pair) != 2 or not all(isinstance(text, str) for text in pair) for pair in value):
            raise UserError(f"{format_value(value)} is not a list of pairs of texts")
        return [(pair[0], pair[1]) for pair in value]
    return parse_texts(value)


def parse_chat_messages(value: Any) -> SizedMessages:
    """Parse the messages of a conversation; the role developer becomes system."""
    if not isinstance(value, list) or not value:
        raise UserError(f"{format_value(value)} is not a list of messages")
    return SizedMessages(_parse_message(message, number) for number, message in enumerate(value))


def _parse_message(value: Any, number: int) -> Message:
    if not isinstance(value, dict):
        raise UserError(
            f"message {number} is {format_value(value)}, expected an object with role and content"
        )
    for name in ("function_call", "audio"):
        if value.get(name):
            raise UserError(
                f"message {number} has {name}, which is not supported; supported: text and tool_calls"
            )
    role, content, tool_call_id = value.get("role"), value.get("content"), value.get("tool_call_id")
    if not isinstance(role, str):
        raise UserError(
            f"message {number} has the role {format_value(role)}, expected {', '.join(MESSAGE_ROLES)}"
        )
    calls = parse_tool_calls(value.get("tool_calls"), number)
    reasoning = drop_nulls(value).get("reasoning_content", value.get("reasoning")) or ""
    if not isinstance(reasoning, str):
        raise UserError(f"message {number} has the reasoning {format_value(reasoning)}, expected a string")
    if isinstance(content, list):
        content = "".join(read_text_part(part, ("text",), f"message {number}") for part in content)
    if role in ROLES_WITHOUT_CONTENT and content is None:
        content = ""
    if not isinstance(content, str):
        raise UserError(
            f"message {number} has the content {format_value(content)}, expected a string or a list of texts"
        )
    if not isinstance(tool_call_id, str | None):
        raise UserError(
            f"message {number} has the tool_call_id {format_value(tool_call_id)}, expected a string"
        )
    return Message(MESSAGE_ROLE_ALIASES.get(role, role), content, calls, tool_call_id or "", reasoning)


def read_text_part(part: Any, kinds: Sequence[str], label: str) -> str:
    """Return the text of one content part of ``label``, whose type must be one of ``kinds``."""
    fields = part if isinstance(part, dict) else {"type": part}
    if fields.get("type") not in kinds or not isinstance(fields.get("text"), str):
        raise UserError(
            f"{label} has a part {format_value(fields.get('type'))}; this model supports text only: "
            f"{{type: {kinds[0]}, text: ...}}"
        )
    return str(fields["text"])


def parse_stops(value: Any) -> list[str]:
    """Parse stop sequences: a few short texts."""
    stops = [] if value == [] else parse_texts(value)
    if len(stops) > STOPS or not all(0 < len(stop) <= STOP_CHARS for stop in stops):
        raise UserError(f"expected at most {STOPS} texts of 1 to {STOP_CHARS} characters")
    return stops


def parse_stop_token_ids(value: Any) -> list[int]:
    """Parse the tokens that end an output: a few ids."""
    ids = [] if value == [] else parse_token_ids(value)
    if len(ids) > STOP_TOKENS:
        raise UserError(f"expected at most {STOP_TOKENS} token ids")
    return ids


def parse_documents(value: Any) -> list[str]:
    """Return the texts of a list of texts, or of objects with a text."""
    if not isinstance(value, list) or not value:
        raise UserError(f"{format_value(value)} is not a list of texts")
    texts: list[Any] = [
        document.get("text") if isinstance(document, dict) else document for document in value
    ]
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(
                f"document {number} is {format_value(value[number])}, expected a text or an object with one"
            )
    return texts


def parse_terms(value: Any) -> dict[str, list[str]]:
    """Parse terminology: words, each with one or more translations."""
    if not isinstance(value, dict):
        raise UserError(f'{format_value(value)} is not an object such as {{"dog": "Hund"}}')
    return {str(word): parse_texts(phrases) for word, phrases in value.items()}


def parse_token_ids(value: Any) -> list[int]:
    """Check a list of token ids; only the first invalid one is reported, because reports take time."""
    if not isinstance(value, list) or not value:
        raise UserError(f"{format_value(value)} is not a list of token ids")
    for number, token in enumerate(value):
        if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID:
            raise UserError(f"{format_value(token)} at index {number} is not a token id")
    return value


def parse_layer_list(value: Any) -> list[int] | str:
    """Check the numbers of layers, or "all"."""
    if value == "all" or (isinstance(value, list) and value and all(type(layer) is int for layer in value)):
        layers: list[int] | str = value
        return layers
    raise UserError(f'{format_value(value)} is not a list of layer numbers such as [0, -1], or "all"')


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


TEXT_SCHEMA, IDS_SCHEMA = (
    {"type": "string"},
    {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
)
NULL_SCHEMA = {"type": "null"}


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


def object_schema(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the JSON Schema of an object; its fields that are not ``required`` may be null."""
    schema = {"type": "object", "required": list(required), "properties": properties}
    allow_nulls(schema)
    return schema


def _array_schema(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


TextList = Annotated[
    list[str],
    PlainValidator(parse_texts),
    WithJsonSchema({"anyOf": [TEXT_SCHEMA, _array_schema(TEXT_SCHEMA)]}),
]
Prompts = Annotated[
    list[str | list[int]],
    PlainValidator(parse_prompts),
    WithJsonSchema(
        {"anyOf": [TEXT_SCHEMA, _array_schema(TEXT_SCHEMA), IDS_SCHEMA, _array_schema(IDS_SCHEMA)]}
    ),
]
TEXT_PART_SCHEMA = object_schema("type", "text", type={"const": "text"}, text=TEXT_SCHEMA)
NAME_SCHEMA = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}
FUNCTION_TYPE = {"type": {"const": "function"}}


def _function_schema(**properties: Any) -> dict[str, Any]:
    """Return the schema of a function: its name and further properties."""
    return object_schema("name", name=NAME_SCHEMA, **properties)


TOOL_CALL_SCHEMA = object_schema(
    "function", id=TEXT_SCHEMA, **FUNCTION_TYPE, function=_function_schema(arguments=TEXT_SCHEMA)
)
TOOL_SCHEMA = object_schema(
    "function",
    **FUNCTION_TYPE,
    function=_function_schema(description=TEXT_SCHEMA, parameters={"type": "object"}),
)
TOOL_CHOICE_SCHEMA = object_schema("function", **FUNCTION_TYPE, function=_function_schema())
ToolList = Annotated[
    tuple[Tool, ...],
    PlainValidator(parse_tools),
    WithJsonSchema({"type": "array", "items": TOOL_SCHEMA}),
]
ToolChoiceField = Annotated[
    str | list[str],
    PlainValidator(validate_tool_choice),
    WithJsonSchema({"anyOf": [{"enum": list(TOOL_CHOICES)}, TOOL_CHOICE_SCHEMA]}),
]
MessageList = Annotated[
    SizedMessages,
    PlainValidator(parse_chat_messages),
    WithJsonSchema(
        _array_schema(
            object_schema(
                "role",
                role={"enum": [*MESSAGE_ROLES, *MESSAGE_ROLE_ALIASES]},
                content={"anyOf": [TEXT_SCHEMA, _array_schema(TEXT_PART_SCHEMA)]},
                tool_calls={"type": "array", "items": TOOL_CALL_SCHEMA},
                tool_call_id=TEXT_SCHEMA,
                reasoning=TEXT_SCHEMA,
                reasoning_content=TEXT_SCHEMA,
            )
        )
    ),
]
Documents = Annotated[
    list[str],
    PlainValidator(parse_documents),
    WithJsonSchema(_array_schema({"anyOf": [TEXT_SCHEMA, object_schema("text", text=TEXT_SCHEMA)]})),
]
Pairs = Annotated[
    list[str] | list[tuple[str, str]],
    PlainValidator(parse_text_pairs),
    WithJsonSchema(
        {
            "anyOf": [
                TEXT_SCHEMA,
                _array_schema(TEXT_SCHEMA),
                _array_schema({"type": "array", "items": TEXT_SCHEMA, "minItems": 2, "maxItems": 2}),
            ]
        }
    ),
]
Stops = Annotated[
    list[str],
    PlainValidator(parse_stops),
    WithJsonSchema(
        {
            "anyOf": [
                TEXT_SCHEMA | {"minLength": 1, "maxLength": STOP_CHARS},
                _array_schema(TEXT_SCHEMA) | {"maxItems": STOPS},
            ]
        }
    ),
]
TermTable = Annotated[
    dict[str, list[str]],
    PlainValidator(parse_terms),
    WithJsonSchema(
        {"type": "object", "additionalProperties": {"anyOf": [TEXT_SCHEMA, _array_schema(TEXT_SCHEMA)]}}
    ),
]
LayerList = Annotated[
    list[int] | str,
    PlainValidator(parse_layer_list),
    WithJsonSchema({"anyOf": [{"const": "all"}, _array_schema({"type": "integer"})]}),
]
StopTokenIds = Annotated[
    list[int],
    PlainValidator(parse_stop_token_ids),
    WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": STOP_TOKENS}),
]
Ids = Annotated[list[int], PlainValidator(parse_token_ids), WithJsonSchema(IDS_SCHEMA)]


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
