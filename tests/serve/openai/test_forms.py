"""Structured outputs over HTTP: as the run generates them, and as OpenAI's client parses them."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Literal

import pytest
from pydantic import BaseModel
from tests.serve.conftest import build_chat_run, get_error, serve_run, with_generation

from polyhead import Choice
from polyhead.generation import text_engine

QUESTION = [{"role": "user", "content": "zwei hunde"}]
CHAT, PATH = "/v1/chat/completions", "/v1/completions"


class Dog(BaseModel):
    age: Literal[3, 33]
    barks: bool


SCHEMA = Dog.model_json_schema() | {"additionalProperties": False}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "dog", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def long_client():
    with serve_run(with_generation(build_chat_run(max_len=300), max_new_tokens=200)) as client:
        yield client


def test_openai_client_parses_structured_outputs(long_client):
    completions = long_client.openai().chat.completions
    options = {"model": "tiny", "messages": QUESTION, "response_format": Dog, "seed": 2}
    (choice,) = completions.parse(**options).choices
    assert choice.finish_reason == "stop" and isinstance(choice.message.parsed, Dog)
    assert json.loads(choice.message.content) == choice.message.parsed.model_dump()
    with completions.stream(**options) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == choice.message.parsed


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, {"name": "regex", "pattern": "[0-9]{3}"}),
        ({"structured_outputs": {"choice": ["dogs", "犬"]}}, {"name": "choice", "choices": ["dogs", "犬"]}),
        ({"structured_outputs": {"json": SCHEMA}}, {"name": "json", "schema": SCHEMA}),
        ({"response_format": JSON_SCHEMA}, {"name": "json", "schema": SCHEMA}),
        ({"response_format": {"type": "json_object"}}, "json"),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "structured_outputs": None}, None),
    ],
    ids=range(7),
)
def test_structured_outputs_equal_those_of_the_run(long_client, fields, grammar):
    grammar_option = {"grammar": grammar} if grammar else {}
    body = {"prompt": "dogs", "max_tokens": 20, **fields}

    def generate(**options):
        engine = long_client.run.engine()
        return engine.submit("dogs", max_new_tokens=20, **options, **grammar_option).collect_texts()

    for options in ({"seed": 4, "n": 2}, {"beam_size": 2}):
        choices = long_client.ask(PATH, body | options).json()["choices"]
        assert [choice["text"] for choice in choices] == generate(**options)
    events = long_client.stream(PATH, body | {"seed": 4})
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    assert text == generate(seed=4)[0]
    if grammar and "pattern" in grammar:
        assert re.fullmatch("[0-9]{3}", text)


def test_unusable_grammars_are_refused(long_client, translator):
    body = {"prompt": "dogs", "structured_outputs": {"regex": "(a{1000}){1000}{1000}"}}
    message = get_error(long_client.ask(PATH, body))["message"]
    assert "the grammar allows no next token: it is too complex" in message
    assert long_client.ask(PATH, {"prompt": "dogs", "max_tokens": 3}).status_code == 200
    for path, text in (("/v1/translations", {"input": "ein hund"}), (PATH, {"prompt": "ein hund"})):
        error = get_error(translator.ask(path, text | {"response_format": {"type": "json_object"}}))
        assert error["param"] == "response_format" and "no effect on translations" in error["message"]
        assert translator.ask(path, text | {"response_format": {"type": "text"}}).status_code == 200


@pytest.mark.parametrize(
    ("path", "prompt", "read_text"),
    [
        (PATH, {"prompt": "dogs", "max_tokens": 20}, lambda answer: answer["choices"][0]["text"]),
        (CHAT, {"messages": QUESTION, "max_tokens": 20}, lambda a: a["choices"][0]["message"]["content"]),
    ],
)
def test_grammar_of_the_run_is_kept_or_disabled(long_client, path, prompt, read_text):
    run = with_generation(long_client.run, grammar=Choice("choice", choices=["dogs", "犬"]))
    with serve_run(run) as client:
        body = prompt | {"seed": 4}
        assert read_text(client.ask(path, body | {"response_format": None}).json()) in ("dogs", "犬")
        expected = read_text(long_client.ask(path, body).json())
        assert read_text(client.ask(path, body | {"response_format": {"type": "text"}}).json()) == expected


def test_grammar_is_compiled_outside_the_loop(long_client, monkeypatch):
    for path, prompt in ((CHAT, {"messages": QUESTION}), (PATH, {"prompt": ""})):
        is_compiling, may_finish = Event(), Event()

        def compile_slowly(*_, start=is_compiling, end=may_finish):
            start.set()
            end.wait()

        monkeypatch.setattr(text_engine, "constraint_for", compile_slowly)
        with ThreadPoolExecutor() as pool:
            body = prompt | {"structured_outputs": {"regex": "a"}, "max_tokens": 5}
            answer = pool.submit(long_client.ask, path, body)
            is_compiling.wait()
            assert long_client.ask("/health").status_code == 200
            may_finish.set()
            assert answer.result().status_code == 200
