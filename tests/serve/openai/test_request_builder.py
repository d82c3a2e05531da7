from types import SimpleNamespace

import pytest
from tests.serve.conftest import TEXTS, build_run, get_error, serve_run

from polyhead import Choice
from polyhead.generation.chat import parse_conversation
from polyhead.serve.limits import Limits
from polyhead.serve.openai.request_builder import _fit_prompt
from polyhead.serve.openai.schemas import CompletionBody

PATH = "/v1/completions"


def prompt_ids(client, length):
    return (client.run.tokenizer.encode([" ".join(TEXTS)])[0] * 9)[:length]


def too_long_warning(n_requested, room):
    return f"{n_requested} output tokens were requested; at most {room} can be generated"


@pytest.mark.acceptance("C5")
def test_max_tokens_is_reduced_to_the_room_left(client):
    """With a warning; a prompt that is too long is refused, or truncated on request."""
    max_len = client.run.config.max_len
    pairs = [(max_len - 1, 2), (max_len - 1, 3), (max_len, 1), (max_len, 2), (max_len + 1, 1)]
    for length, max_tokens in (*pairs, (1, max_len), (1, max_len + 1)):
        body = {"prompt": prompt_ids(client, length), "max_tokens": max_tokens, "seed": 1}
        answer, room = client.ask(PATH, body), max_len - length + 1
        if length > max_len:
            assert get_error(answer)["code"] == "context_length_exceeded"
        elif max_tokens <= room:
            assert answer.status_code == 200 and "x-warnings" not in answer.headers
        else:
            assert answer.headers["x-warnings"] == too_long_warning(max_tokens, room)
            expected = client.ask(PATH, body | {"max_tokens": room}).json()
            assert answer.json()["choices"] == expected["choices"]
            details = {"prompt_tokens_details": expected["usage"]["prompt_tokens_details"]}
            assert answer.json()["usage"] | details == expected["usage"]
        truncated_answer = client.ask(PATH, body | {"truncate": True}).json()
        num_new = max_tokens if max_tokens < max_len else max_len - length
        assert truncated_answer["usage"]["prompt_tokens"] == min(length, max_len - num_new)
        assert truncated_answer["usage"]["total_tokens"] <= max_len
    default = client.ask(PATH, {"prompt": prompt_ids(client, max_len - 3), "seed": 1}).json()
    assert default["usage"]["total_tokens"] <= max_len + 1


@pytest.mark.parametrize(
    "options", [{"temperature": 0, "min_tokens": 15}, {"beam_size": 2, "min_tokens": 15}], ids=str
)
def test_truncated_prompt_leaves_room_for_the_default_length(client, options):
    """15 tokens of 48."""
    ids, n_prompt = prompt_ids(client, 300), 33
    answer = client.ask(PATH, {"prompt": ids, **options, "truncate": True}).json()
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (n_prompt, 15)
    body = {"prompt": ids[-n_prompt:], **options, "max_tokens": 15, "truncate": True}
    assert answer["choices"] == client.ask(PATH, body).json()["choices"]


@pytest.mark.parametrize(
    ("length", "n_prompt", "max_new_tokens"), [(10, 10, 38), (24, 24, 24), (30, 24, 24), (300, 24, 24)]
)
def test_default_length_takes_half_the_context_at_most(length, n_prompt, max_new_tokens):
    engine = SimpleNamespace(max_len=48, tokenizer=SimpleNamespace(prefix_ids=[]))
    service = SimpleNamespace(limits=SimpleNamespace(max_tokens=100), default_max_tokens=100)
    body = CompletionBody.model_validate({"prompt": "", "beam_size": 2, "truncate": True})
    ids = list(range(length))
    expected = (ids[-n_prompt:], {"max_new_tokens": max_new_tokens})
    assert _fit_prompt(service, engine, body, ids, {}) == expected


@pytest.mark.parametrize("options", [{"seed": 1}, {"beam_size": 2}], ids=str)
@pytest.mark.parametrize("length", [20, 28, 29, 48, 300])
def test_truncated_prompt_and_output_fit_the_context(client, options, length):
    """As in vLLM 28 tokens and 20 new ones are the 48 of the model."""
    ids = prompt_ids(client, length)
    options = options | {"max_tokens": 20, "min_tokens": 20, "truncate": True}
    answer = client.ask(PATH, {"prompt": ids, **options}).json()
    assert answer["usage"]["prompt_tokens"] == min(length, 28)
    assert answer["usage"]["completion_tokens"] == 20
    expected = client.ask(PATH, {"prompt": ids[-28:], **options, "truncate": False}).json()
    assert answer["choices"] == expected["choices"]
    excessive = client.ask(PATH, {"prompt": ids, **options, "max_tokens": 49, "min_tokens": 1})
    assert excessive.headers["x-warnings"] == too_long_warning(49, max(24, 48 - length))
    assert excessive.json()["usage"]["prompt_tokens"] == min(length, 24)


@pytest.fixture(scope="module")
def short_client():
    """A service with a limit of 30 output tokens."""
    limits = Limits(max_tokens=30)
    with serve_run(build_run("decoder"), chat=Choice("plain"), limits=limits) as client:
        yield client


def test_large_max_tokens_is_reduced_on_every_route(short_client, translator):
    """The limit of the service counts too; the warning is the first, so that others do not hide it."""
    max_tokens = 2**31 - 1
    unknown_fields = {f"odd{i}": 1 for i in range(9)}
    messages = [{"role": "user", "content": "dogs"}]
    n = len(short_client.service.chat.encode_prompt(parse_conversation(messages)))
    for path, body, name, room in (
        ("completions", {"prompt": [5] * 10}, "max_tokens", 30),
        ("chat/completions", {"messages": messages}, "max_tokens", min(30, 49 - n)),
        (
            "chat/completions",
            {"messages": messages, "truncate": True},
            "max_completion_tokens",
            min(30, 48 - n),
        ),
    ):
        answer = short_client.ask(f"/v1/{path}", {**body, **unknown_fields, "seed": 1, name: max_tokens})
        assert answer.status_code == 200
        assert answer.headers["x-warnings"].startswith(too_long_warning(max_tokens, min(room, 49 - n)))
    for options in ({"beam_size": 2}, {"temperature": 0}):
        body = {"input": "ein hund bellt .", **options}
        answer = translator.ask("/v1/translations", body | {"max_tokens": max_tokens})
        assert "at most 48 can be generated" in answer.headers["x-warnings"]
        within_limit = translator.ask("/v1/translations", body | {"max_tokens": 48})
        assert within_limit.json()["data"] == answer.json()["data"]
        assert "x-warnings" not in within_limit.headers


def test_sixteen_stop_strings_of_256_characters_are_supported(client):
    body = {"prompt": "a dog barks .", "seed": 7, "max_tokens": 12}
    text = client.ask(PATH, body).json()["choices"][0]["text"]
    stop = max((letter for letter in text if letter.isascii() and letter.isalpha()), key=text.index)
    stops = [f"{i:x}" * 256 for i in range(15)]
    (choice,) = client.ask(PATH, body | {"stop": [*stops, stop]}).json()["choices"]
    assert choice["text"] == text[: text.index(stop)].rstrip("\ufffd") and choice["finish_reason"] == "stop"
    error = get_error(client.ask(PATH, body | {"stop": [*stops, "a", "b"]}))
    assert error["param"] == "stop" and "at most 16 texts of 1 to 256 characters" in error["message"]
