"""Answers of a form over HTTP: what clients of other services send, what comes back, and what is refused by
name.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, Literal

import httpx2
import openai
import pytest
from pydantic import BaseModel
from tests.serve.conftest import living, make

from polyhead import Choice
from polyhead.generation import text_engine
from polyhead.run.run import Run

TALK = [{"role": "user", "content": "zwei hunde"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class Dog(BaseModel):
    age: Literal[3, 33]
    barks: bool


SCHEMA = Dog.model_json_schema() | {"additionalProperties": False}


@pytest.fixture(scope="module")
def live() -> Any:
    made = make("decoder", max_len=300)
    settings = made.generation.model_copy(update={"chat": Choice("plain"), "max_new_tokens": 200})
    with living(Run(made.model, made.tokenizer, settings)) as found:
        yield found


def test_the_client_of_openai_gets_what_it_parses(live: Any) -> None:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none")
    for seed in range(3):
        choice = client.chat.completions.parse(
            model="tiny", messages=TALK, response_format=Dog, seed=seed
        ).choices[0]
        assert choice.finish_reason == "stop" and isinstance(choice.message.parsed, Dog)
        assert choice.message.content
        assert json.loads(choice.message.content) == choice.message.parsed.model_dump()
    with client.chat.completions.stream(model="tiny", messages=TALK, response_format=Dog, seed=2) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == choice.message.parsed


FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"structured_outputs": {"regex": "[0-9]{3}"}}, {"name": "regex", "pattern": "[0-9]{3}"}),
    ({"structured_outputs": {"choice": ["dogs", "犬"]}}, {"name": "choice", "choices": ["dogs", "犬"]}),
    ({"structured_outputs": {"json": SCHEMA}}, {"name": "json", "schema": SCHEMA}),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "dog", "schema": SCHEMA,
        "strict": True}}}, {"name": "json", "schema": SCHEMA}),
    ({"response_format": {"type": "json_object"}}, "json"),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": None, "structured_outputs": None}, None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "form"), FORMS, ids=str)
def test_texts_are_those_of_the_run(live: Any, body: dict[str, Any], form: Any) -> None:
    for way in ({"seed": 4, "n": 2}, {"beam_size": 2}):
        wish = way | ({"grammar": form} if form else {})
        wanted = live.run.engine().submit("dogs", max_new_tokens=60, **wish).collect_texts()
        answer = live.ask(TEXT, {"prompt": "dogs", "max_tokens": 60, **way, **body}).json()
        assert [choice["text"] for choice in answer["choices"]] == wanted
    events = live.events(TEXT, {"prompt": "dogs", "max_tokens": 60, "seed": 4, **body})
    said = "".join(choice["text"] for event in events for choice in event["choices"])
    if body.get("structured_outputs") and "regex" in body["structured_outputs"]:
        assert re.fullmatch("[0-9]{3}", said)
    one = {"grammar": form} if form else {}
    assert said == live.run.engine().submit("dogs", max_new_tokens=60, seed=4, **one).collect_texts()[0]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "'xml' is not one of text, json_object, "
            "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema is missing"),
        ({"response_format": "json"}, "response_format", ""),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a",
            "schema": "/etc/hostname"}}}, "response_format", "json_schema.schema: '/etc/hostname' is not a "
                "mapping"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
            "response_format", "unimplemented keys: [\"not\"]"),
        ({"structured_outputs": {"json": "/etc/hostname"}}, "structured_outputs", "'/etc/hostname' is not a "
            "mapping"),
        ({"structured_outputs": {"regex": "["}}, "structured_outputs", "grammar 'regex': unclosed character "
            "class"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "choices is []"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs", "grammar 'grammar'"),
        ({"guided_choice": ["yes"]}, "guided_choice", "guided_choice is not supported by this service; use "
            "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs", "structured_outputs has none of regex, choice, "
            "json"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs",
            "response_format, structured_outputs and grammar cannot be combined"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs", "response_format, structured_outputs and grammar cannot be combined"),
    ],
)  # fmt: skip
def test_what_is_no_form_is_refused_by_name(live: Any, body: dict[str, Any], param: str, said: str) -> None:
    for path, text in ((CHAT, {"messages": TALK}), (TEXT, {"prompt": "dogs"})):
        answer = live.ask(path, text | body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param), error
        assert said in error["message"] and "\n" not in error["message"]


def test_what_no_token_can_say_ends_its_own_request(live: Any) -> None:
    body = {"prompt": "dogs", "structured_outputs": {"regex": "(a{1000}){1000}{1000}"}}
    answer = live.ask(TEXT, body)
    assert answer.status_code == 400
    assert "the grammar allows no next token: it is too complex" in answer.json()["error"]["message"]
    assert live.ask(TEXT, {"prompt": "dogs", "max_tokens": 3}).status_code == 200


def test_any_text_puts_off_the_form_of_the_run(live: Any) -> None:
    own = live.run.generation.model_copy(update={"grammar": Choice("choice", choices=["dogs", "犬"])})
    bodies = [(TEXT, {"prompt": "dogs", "seed": 4}, "text"), (CHAT, {"messages": TALK, "seed": 4}, "message")]
    with living(Run(live.run.model, live.run.tokenizer, own)) as held:
        for path, body, key in bodies:
            (free,) = live.ask(path, body).json()["choices"]
            (off,) = held.ask(path, body | {"response_format": {"type": "text"}}).json()["choices"]
            (kept,) = held.ask(path, body | {"response_format": None}).json()["choices"]
            assert off[key] == free[key]
            assert (kept[key] if path == TEXT else kept[key]["content"]) in ("dogs", "犬")


def test_translations_have_no_form() -> None:
    with living(make("encoder-decoder")) as live:
        for path, text in (("/v1/translations", {"input": "ein hund"}), (TEXT, {"prompt": "ein hund"})):
            answer = live.ask(path, text | {"response_format": {"type": "json_object"}})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "response_format"
            assert "no effect on translations" in answer.json()["error"]["message"]
            assert live.ask(path, text | {"response_format": {"type": "text"}}).status_code == 200


def test_others_are_answered_while_a_form_is_read(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, read = Event(), Event()

    def slowly(*given: Any) -> None:
        begun.set()
        assert read.wait(30)

    monkeypatch.setattr(text_engine, "constraint_for", slowly)
    with ThreadPoolExecutor() as pool:
        for path, text in ((CHAT, {"messages": TALK}), (TEXT, {"prompt": ""})):
            begun.clear()
            read.clear()
            asked = pool.submit(
                httpx2.post,
                f"{live.url}{path}",
                json=text | {"structured_outputs": {"regex": "a"}},
                timeout=60,
            )
            try:
                assert begun.wait(30)
                assert httpx2.get(f"{live.url}/health", timeout=5).status_code == 200
            finally:
                read.set()
            assert asked.result().status_code == 200
