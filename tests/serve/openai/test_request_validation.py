"""Tests of serve/openai/request_validation.py."""

from __future__ import annotations

import pytest
from tests.serve.refusals_helpers import canary as canary
from tests.serve.refusals_helpers import refused

from polyhead.core.errors import did_you_mean, format_value
from polyhead.serve.http.limits import Limits
from polyhead.serve.http.routes import ROUTES
from polyhead.serve.openai import request_validation, schema_fields
from polyhead.serve.openai.request_validation import NEUTRAL_VALUES, validate_body

HUGE = {"a": "a" * 10**6, "marks": "a" + "\u0301" * 10**6}

WRONG = [
    ({}, "prompt"), ({"prompt": None}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": {}}, "prompt"),
        ({"prompt": [["a"]]}, "prompt"),
    ({"prompt": [1, -1]}, "prompt"), ({"prompt": [10**6]}, "prompt"), ({"prompt": [2**63], "echo": True},
        "prompt"), ({"prompt": [1.5]}, "prompt"), ({"prompt": [True]}, "prompt"),
    ({"prompt": [[]]}, "prompt"), ({"prompt": ["a", 1]}, "prompt"), ({"prompt": ["a"] * 10_000}, "prompt"),
        ({"prompt": HUGE["a"]}, "prompt"),
    ({"prompt": HUGE["marks"]}, "prompt"), ({"prompt": "a", "stop": [""]}, "stop"), ({"prompt": "a",
        "stop": ["x"] * 10_000}, "stop"),
    ({"prompt": "a", "stop": "x" * 257}, "stop"), ({"prompt": "a", "stop": 7}, "stop"), ({"prompt": "a",
        "temperature": -1}, "temperature"),
    ({"prompt": "a", "temperature": "hot"}, "temperature"), ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "top_p": 1.1}, "top_p"),
    ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"), ({"prompt": "a", "stream": 1},
        "stream"), ({"prompt": "a", "stream": "true"}, "stream"),
    ({"prompt": "a", "stream_options": {"include_usage": 1}}, "stream_options"), ({"prompt": "a",
        "logit_bias": {"5": 101}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias"), ({"prompt": "a", "logit_bias": {"a": 1}},
        "logit_bias"), ({"prompt": "a", "logit_bias": [5]}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"9999": 1}}, "logit_bias"), ({"prompt": "a",
        "logit_bias": {"99999999999": 1}}, "logit_bias"), ({"prompt": "a", "logit_bias": {"5": "1"}},
            "logit_bias"),
    ({"prompt": "a", "logit_bias": {"5": 1}, "beam_size": 2}, "logit_bias"), ({"prompt": "a",
        "frequency_penalty": 1, "beam_size": 2}, "frequency_penalty"),
    ({"prompt": "a", "frequency_penalty": 2.5}, "frequency_penalty"), ({"prompt": "a",
        "presence_penalty": -2.5}, "presence_penalty"), ({"prompt": "a", "presence_penalty": "1"},
            "presence_penalty"),
    ({"prompt": "a", "frequency_penalty": True}, "frequency_penalty"), ({"prompt": "a", "best_of": 2},
        "best_of"), ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "n": 3, "beam_size": 2}, "n"), ({"prompt": "a", "beam_size": 2, "temperature": 1},
        "temperature"),
    ({"prompt": "a", "length_penalty": 2}, "length_penalty"), ({"prompt": "a", "min_tokens": -1},
        "min_tokens"), ({"prompt": "a", "model": 7}, "model"),
    ({"prompt": "a", "echo": "yes"}, "echo"), ({"prompt": "a", "logprobs": 0, "beam_size": 2}, "logprobs"),
]  # fmt: skip


@pytest.mark.acceptance("E5", "R6")
@pytest.mark.parametrize(("body", "param"), WRONG, ids=[str(body)[:60] for body, _ in WRONG])
def test_wrong_fields_are_named(speaker, canary, body, param):
    assert refused(speaker.ask("/v1/completions", body))["param"] == param


def test_a_misspelt_field_that_is_needed_is_answered_with_the_right_name(speaker, canary):
    error = refused(speaker.ask("/v1/completions", {"promt": "a dog"}))
    assert error["param"] == "prompt"
    assert (
        error["message"]
        == "prompt: missing; this key has no default; field 'promt' is ignored; did you mean 'prompt'?"
    )


def test_another_name_of_a_field_that_is_needed_is_not_taken_for_a_third_one(speaker, canary):
    for route, body, needed in (
        ("/v1/score", {"text": "a dog"}, "input"),
        ("/v1/completions", {"input": "a dog"}, "prompt"),
    ):
        error = refused(speaker.ask(route, body))
        assert error["param"] == needed
        (name,) = body
        assert error["message"] == f"{needed}: missing; this key has no default; field {name!r} is ignored"


@pytest.mark.acceptance("E12")
def test_of_many_mistakes_in_a_body_few_are_looked_into(speaker, canary, monkeypatch):
    """Counted are the names for which the nearest is sought, and the values that are shown."""
    sought, shown = [], []
    monkeypatch.setattr(
        request_validation,
        "did_you_mean",
        lambda name, *known: sought.append(name) or did_you_mean(name, *known),
    )
    monkeypatch.setattr(
        schema_fields, "format_value", lambda value: shown.append(value) or format_value(value)
    )
    answer = speaker.ask(
        "/v1/completions", {"prompt": "a", "max_tokens": 1, **{f"promt{i}": i for i in range(50000)}}
    )
    assert answer.status_code == 200 and answer.headers["x-warnings"].count("did you mean 'prompt'") == 4
    assert sought == ["promt0", "promt1", "promt10", "promt100"]
    error = refused(speaker.ask("/detokenize", {"tokens": [1, *["1"] * 50000]}))
    assert error["message"] == "tokens: '1' at index 1 is not a token id" and shown == ["1"]
    error = refused(
        speaker.ask("/v1/completions", {"prompt": "a", "tools": [1], **dict.fromkeys(map(str, range(9)))})
    )
    assert error["param"] == "tools"  # however many come before it that are only ignored


REQUIRED = {"prompt": "a", "input": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [5],
    "query": "a", "documents": ["b"], "text": "a"}  # fmt: skip


@pytest.mark.acceptance("E6")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "body_type",
    sorted({route.body for route in ROUTES if route.body}, key=lambda body: body.__name__),
    ids=lambda body: body.__name__,
)
def test_null_is_not_given_in_every_field_of_every_route(body_type, strict):
    needed = {name: REQUIRED[name] for name, field in body_type.model_fields.items() if field.is_required()}
    plain, _ = validate_body(body_type, needed, Limits(), strict)
    for name in (*body_type.model_fields, *NEUTRAL_VALUES, "user", "use_beam_search"):
        if name in needed:
            with pytest.raises(request_validation.ApiError, match=f"{name}: missing"):
                validate_body(body_type, needed | {name: None}, Limits(), strict)
            continue
        body, warnings = validate_body(body_type, needed | {name: None}, Limits(), strict)
        assert warnings == [] and body == plain and body.model_fields_set == plain.model_fields_set, name


TOOL = {"type": "function", "function": {"name": "now", "parameters": {"enum": [None]}}}
CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
NULLS = {"x": None}
INSIDE = [
    ("/v1/completions", {"stream_options": {}}, {"stream_options": {"include_usage": None, **NULLS}}),
    ("/v1/completions", {"response_format": {"type": "text"}},
        {"response_format": {"type": "text", "json_schema": None}}),
    ("/v1/completions", {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        {"response_format": {"type": "json_schema",
            "json_schema": {"schema": {}, "strict": None, "description": None}}}),
    ("/v1/completions", {"structured_outputs": {"regex": "a"}},
        {"structured_outputs": {"regex": "a", "choice": None, "json": None, "grammar": None}}),
    ("/v1/chat/completions", {"tools": [TOOL]},
        {"tools": [{**TOOL, **NULLS, "function": {**TOOL["function"], "description": None}}]}),
    ("/v1/chat/completions", {"tools": [{"function": {"name": "now"}}]},
        {"tools": [{"type": None, "function": {"name": "now", "parameters": None}}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"role": "user", "content": "a", "name": None, "tool_calls": None, "tool_call_id": None,
            **NULLS}]}),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "a", "tool_calls": [
        {key: CALL[key] for key in ("type", "function")}]}]},
        {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{**CALL, "id": None}]}]}),
    ("/v1/responses", {"text": {}}, {"text": {"format": None, "verbosity": None}}),
    ("/v1/responses", {"text": {"format": {"type": "text"}}},
        {"text": {"format": {"type": "text", "schema": None, "name": None}}}),
    ("/v1/responses", {}, {"reasoning": {"effort": None, "summary": None, "generate_summary": None}}),
    ("/v1/responses", {"tools": [{"type": "function", "name": "now"}]},
        {"tools": [{"type": "function", "name": "now", "parameters": None, "strict": None}]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "plain", "nulls"), INSIDE, ids=range(len(INSIDE)))
def test_null_is_not_given_inside_of_fields_too(path, plain, nulls):
    (body_type,) = [route.body for route in ROUTES if route.path == path]
    needed = {name: REQUIRED[name] for name, field in body_type.model_fields.items() if field.is_required()}
    wanted, _ = validate_body(body_type, needed | plain, Limits(), True)
    body, warnings = validate_body(body_type, needed | nulls, Limits(), True)
    assert body.model_dump(exclude_unset=True) == wanted.model_dump(exclude_unset=True)
    assert warnings == []


def test_what_null_means_inside_of_a_schema_is_kept():
    (body_type,) = [route.body for route in ROUTES if route.path == "/v1/chat/completions"]
    body, _ = validate_body(body_type, {"messages": REQUIRED["messages"], "tools": [TOOL]}, Limits())
    assert body.tools[0].schema["enum"] == [None]


@pytest.mark.acceptance("E6")
def test_what_clients_send_by_default_is_answered_as_the_short_request(speaker, canary):
    """The fields of langchain-openai and of vLLM's benchmark client, as they send them."""
    body = {"prompt": "a dog barks .", "seed": 7, "max_tokens": 3}
    nulls = dict.fromkeys(
        ("n", "logprobs", "best_of", "logit_bias", "stop", "suffix", "user", "top_k", "min_p", "beam_size",
         "min_tokens", "no_repeat_ngram_size", "stream_options")
    )  # fmt: skip
    wanted, found = (speaker.ask("/v1/completions", one) for one in (body, body | nulls))
    assert found.status_code == 200 and "x-warnings" not in found.headers
    assert found.json()["choices"] == wanted.json()["choices"]


def test_the_description_allows_null_where_it_means_not_given(speaker):
    schemas = speaker.ask("/openapi.json").json()["components"]["schemas"]
    for name, schema in schemas.items():
        for key, field in schema["properties"].items() if name != "Error" else ():
            required = key in schema.get("required", ())
            takes_null = "null" in field.get("type", ()) or {"type": "null"} in field.get("anyOf", ())
            assert takes_null != required, (name, key)
