"""Tests of serve/openai/request_validation.py, and the refusals of all endpoints in refusals.jsonl.

A row of it is the service, the path, the fields of the body, and of the error the param and a part of its
message. In a body ``$NAME`` is a constant, and ``$repeat``, ``$concat``, ``$nested`` and ``$json`` are values
of ``expand``.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import get_error
from tests.serve.openai.chat_helpers import MESSAGES
from tests.serve.tool_call_helpers import CALL_FUNCTION, CALL_NOW, QUESTION, TOOLS

from polyhead.core.errors import did_you_mean, format_value
from polyhead.serve.limits import Limits
from polyhead.serve.openai import request_validation, schema_fields
from polyhead.serve.openai.request_validation import NEUTRAL_VALUES, validate_body
from polyhead.serve.openai.routes import ROUTES

CALL = {"id": "call00one", "type": "function", "function": CALL_FUNCTION}
CONSTANTS: dict[str, Any] = {
    "$MESSAGES": MESSAGES,
    "$MESSAGE": MESSAGES[1],
    "$TOOLS": TOOLS,
    "$NOW": CALL_NOW,
    "$QUESTION": QUESTION[0],
    "$CALL": {"role": "assistant", "content": None, "tool_calls": [CALL]},
    "$RESULT": {"role": "tool", "tool_call_id": "call00one", "content": "snow"},
}
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
REQUIRED_FIELDS: dict[str, dict[str, Any]] = {
    PATHS["completions"]: {"prompt": "a"},
    PATHS["chat"]: {"messages": MESSAGES},
    "/v1/embeddings": {"input": "a"},
    "/v1/translations": {"input": ["a dog barks .", "ein hund"]},
    "/v1/explain": {"text": "a dog barks .", "target": "ein hund bellt ."},
}


def read_rows(name):
    return [json.loads(line) for line in (Path(__file__).parent / name).read_text("utf-8").splitlines()]


def expand(value):
    if isinstance(value, str):
        return CONSTANTS.get(value, value)
    if isinstance(value, list):
        return [expand(item) for item in value]
    if not isinstance(value, dict):
        return value
    (name, argument), *_ = value.items() or [("", None)]
    if name == "$repeat":
        return argument[0] * argument[1]
    if name == "$concat":
        return [item for part in argument for item in expand(part)]
    if name == "$nested":
        return json.loads(f'{{"{argument[0]}":' * argument[1] + "1" + "}" * argument[1])
    if name == "$json":
        return json.dumps(expand(argument))
    return {key: expand(item) for key, item in value.items()}


def find_wrong_answers(client, service):
    """The rows of refusals.jsonl that a service answers otherwise."""
    wrong_answers = []
    for _, path, fields, param, message in [row for row in read_rows("refusals.jsonl") if row[0] == service]:
        paths = (path, PATHS["chat"]) if (service, path) == ("chat", PATHS["completions"]) else (path,)
        for path in paths:
            answer = client.ask(path, {**REQUIRED_FIELDS[path], **expand(fields)})
            error = answer.json().get("error")
            if error is None or answer.status_code not in (400, 404) or "\n" in error["message"]:
                wrong_answers.append((path, fields, answer.text[:300]))
            elif error["param"] != param or message not in error["message"]:
                wrong_answers.append((path, fields, error))
    return wrong_answers


@pytest.mark.acceptance("E5", "R6")
@pytest.mark.parametrize("service", ["encoder", "encoder-decoder", "decoder", "chat"])
def test_refusals_name_the_field_and_the_reason(clients, checked_client, chat_client, service):
    services = clients | {"decoder": checked_client, "chat": chat_client}
    assert find_wrong_answers(services[service], service) == []


def test_refusals_of_tools_name_the_field(fields_client):
    assert find_wrong_answers(fields_client, "tools") == []
    body = {"messages": [QUESTION[0], CONSTANTS["$CALL"], CONSTANTS["$RESULT"]], "max_tokens": 1}
    assert fields_client.ask(PATHS["chat"], body).status_code == 200


def test_missing_field_suggests_the_nearest_name(checked_client):
    hint = "; did you mean 'prompt'?"
    names = (("/v1/completions", "promt", "prompt", hint), ("/v1/score", "text", "input", ""))
    for path, name, param, hint in names:
        error = get_error(checked_client.ask(path, {name: "a dog"}))
        message = f"{param}: missing; this key has no default; field {name!r} is ignored{hint}"
        assert (error["param"], error["message"]) == (param, message)


@pytest.mark.acceptance("E12")
def test_few_of_many_mistakes_are_examined(checked_client, monkeypatch):
    """Counted are the names for which the nearest is searched, and the values that are formatted."""
    searched_names, formatted_values = [], []

    def search(name, *known_names):
        searched_names.append(name)
        return did_you_mean(name, *known_names)

    def format_and_count(value):
        formatted_values.append(value)
        return format_value(value)

    monkeypatch.setattr(request_validation, "did_you_mean", search)
    monkeypatch.setattr(schema_fields, "format_value", format_and_count)
    body = {"prompt": "a", "max_tokens": 1, **{f"promt{i}": i for i in range(50000)}}
    answer = checked_client.ask("/v1/completions", body)
    assert answer.status_code == 200 and answer.headers["x-warnings"].count("did you mean 'prompt'") == 4
    assert searched_names == ["promt0", "promt1", "promt10", "promt100"]
    error = get_error(checked_client.ask("/detokenize", {"tokens": [1, *["1"] * 50000]}))
    assert error["message"] == "tokens: '1' at index 1 is not a token id" and formatted_values == ["1"]
    body = {"prompt": "a", "tools": [1], **dict.fromkeys(map(str, range(9)))}
    error = get_error(checked_client.ask("/v1/completions", body))
    assert error["param"] == "tools", "fields that are only ignored hide no error"


REQUIRED = {"prompt": "a", "input": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [5]}
REQUIRED |= {"query": "a", "documents": ["b"], "text": "a", "question": "a", "context": "b"}
BODIES = sorted({route.body for route in ROUTES if route.body}, key=lambda body: body.__name__)


def required_fields(body_type):
    return {name: REQUIRED[name] for name, field in body_type.model_fields.items() if field.is_required()}


@pytest.mark.acceptance("E6")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("body_type", BODIES, ids=lambda body: body.__name__)
def test_null_equals_a_missing_field(body_type, strict):
    required = required_fields(body_type)
    expected, _ = validate_body(body_type, required, Limits(), strict)
    for name in (*body_type.model_fields, *NEUTRAL_VALUES, "user", "use_beam_search"):
        if name in required:
            with pytest.raises(request_validation.ApiError, match=f"{name}: missing"):
                validate_body(body_type, required | {name: None}, Limits(), strict)
            continue
        body, warnings = validate_body(body_type, required | {name: None}, Limits(), strict)
        assert warnings == [] and body == expected, name
        assert body.model_fields_set == expected.model_fields_set, name


def test_null_equals_a_missing_key_of_an_object():
    """A row of nulls.jsonl is the endpoint, the field, a value of it and an equal one with nulls."""
    for name, field, value, nulls in read_rows("nulls.jsonl"):
        (body_type,) = [route.body for route in ROUTES if route.path == PATHS[name]]
        required = required_fields(body_type)
        (expected, _), (body, warnings) = (
            validate_body(body_type, required | {field: fields}, Limits(), True) for fields in (value, nulls)
        )
        assert warnings == []
        assert body.model_dump(exclude_unset=True) == expected.model_dump(exclude_unset=True), nulls
        if field == "tools" and "enum" in str(value):
            assert body.tools[0].schema["enum"] == [None], "null within a JSON Schema stays"


def test_openapi_allows_null_where_a_field_is_optional(client):
    schemas = client.ask("/openapi.json").json()["components"]["schemas"]
    for name, schema in schemas.items():
        for key, field in schema["properties"].items() if name != "Error" else ():
            is_required = key in schema.get("required", ())
            is_nullable = "null" in field.get("type", ()) or {"type": "null"} in field.get("anyOf", ())
            assert is_nullable != is_required, (name, key)
