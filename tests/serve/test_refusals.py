"""Whatever comes in is answered, truthfully and in one shape; the next request is served as if nothing had been."""

from __future__ import annotations

import json
import socket
import time

import psutil
import pytest
from tests.serve.conftest import make

from polyhead import Choice, ModelConfig, build
from polyhead.core.errors import UserError, did_you_mean, format_value
from polyhead.run.run import Run
from polyhead.run.run_ensemble import ensemble_runs
from polyhead.serve.http.auth import ApiKeys, check_host, read_keys
from polyhead.serve.http.limits import Limits
from polyhead.serve.http.routes import ROUTES
from polyhead.serve.openai import request_validation, schema_fields
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import Tokenizer as Inner

CANARY = {"prompt": "a dog barks .", "seed": 7, "max_tokens": 12}
HUGE = {"a": "a" * 10**6, "marks": "a" + "\u0301" * 10**6}


@pytest.fixture
def canary(speaker):
    """Afterwards the same request still has the same answer."""
    (wanted,) = speaker.run.generate([CANARY["prompt"]], seed=7, max_new_tokens=12)
    yield
    answer = speaker.ask("/v1/completions", CANARY)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] == wanted
    speaker.idle()


def refused(answer, code=400):
    assert answer.status_code == code, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert "\n" not in error["message"]
    assert "Traceback" not in answer.text
    return error


def post(live, content, **headers):
    return live.http.post(
        "/v1/completions", content=content, headers={"content-type": "application/json", **headers}
    )


NOT_OBJECTS = [
    b"", b"{", b"[]", b"7", b"null", b'"text"', b"\xff\xfe", b'\xef\xbb\xbf{"prompt": "x"}', b'{"prompt": NaN}', b'{"temperature": Infinity, "prompt": ""}',
    b'{"prompt": "x", "temperature": 1e999}', b'{"prompt": "x", "prompt": "y"}', b"[" * 10**5, b'{"a":' * 10**5, b'{"prompt": "\\ud800"}',
    b'{"prompt": "x", "\\udfff": 1}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "x"} trailing', b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
]  # fmt: skip


@pytest.mark.acceptance("E5", "E7", "E11", "R6")
@pytest.mark.parametrize("body", NOT_OBJECTS, ids=range(len(NOT_OBJECTS)))
def test_bodies_that_are_no_strict_json(speaker, canary, body):
    assert refused(post(speaker, body))["code"] == "invalid_json"


TAKEN = [
    "",
    " ",
    "\x00",
    "\u202e" * 100,
    "👩‍👩‍👧‍👦" * 3,
    "<|endoftext|>",
    "</s>",
    "<pad>",
    "\ufeffx",
    "犬" * 5,
    "\r\n\x0b\x85\u2028",
]


@pytest.mark.acceptance("E5", "R6")
@pytest.mark.parametrize("prompt", TAKEN, ids=ascii)
def test_odd_texts_are_texts(speaker, canary, prompt):
    body = {"prompt": prompt, "seed": 1, "max_tokens": 3, "truncate": True, "echo": True}
    (choice,) = speaker.ask("/v1/completions", body).json()["choices"]
    (wanted,) = (
        speaker.run.generate([prompt], seed=1, max_new_tokens=3)
        if len(prompt) < 20
        else [choice["text"].removeprefix(prompt)]
    )
    assert choice["text"] == prompt + wanted


WRONG = [
    ({}, "prompt"), ({"prompt": None}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": {}}, "prompt"), ({"prompt": [["a"]]}, "prompt"),
    ({"prompt": [1, -1]}, "prompt"), ({"prompt": [10**6]}, "prompt"), ({"prompt": [2**63], "echo": True}, "prompt"), ({"prompt": [1.5]}, "prompt"), ({"prompt": [True]}, "prompt"),
    ({"prompt": [[]]}, "prompt"), ({"prompt": ["a", 1]}, "prompt"), ({"prompt": ["a"] * 10_000}, "prompt"), ({"prompt": HUGE["a"]}, "prompt"),
    ({"prompt": HUGE["marks"]}, "prompt"), ({"prompt": "a", "stop": [""]}, "stop"), ({"prompt": "a", "stop": ["x"] * 10_000}, "stop"),
    ({"prompt": "a", "stop": "x" * 65}, "stop"), ({"prompt": "a", "stop": 7}, "stop"), ({"prompt": "a", "temperature": -1}, "temperature"),
    ({"prompt": "a", "temperature": "hot"}, "temperature"), ({"prompt": "a", "top_p": 0}, "top_p"), ({"prompt": "a", "top_p": 1.1}, "top_p"),
    ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"), ({"prompt": "a", "stream": 1}, "stream"), ({"prompt": "a", "stream": "true"}, "stream"),
    ({"prompt": "a", "stream_options": {"include_usage": 1}}, "stream_options"), ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias"), ({"prompt": "a", "logit_bias": {"a": 1}}, "logit_bias"), ({"prompt": "a", "logit_bias": [5]}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"9999": 1}}, "logit_bias"), ({"prompt": "a", "logit_bias": {"99999999999": 1}}, "logit_bias"), ({"prompt": "a", "logit_bias": {"5": "1"}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"5": 1}, "beam_size": 2}, "logit_bias"), ({"prompt": "a", "frequency_penalty": 1, "beam_size": 2}, "frequency_penalty"),
    ({"prompt": "a", "frequency_penalty": 2.5}, "frequency_penalty"), ({"prompt": "a", "presence_penalty": -2.5}, "presence_penalty"), ({"prompt": "a", "presence_penalty": "1"}, "presence_penalty"),
    ({"prompt": "a", "frequency_penalty": True}, "frequency_penalty"), ({"prompt": "a", "best_of": 2}, "best_of"), ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "n": 3, "beam_size": 2}, "n"), ({"prompt": "a", "beam_size": 2, "temperature": 1}, "temperature"),
    ({"prompt": "a", "length_penalty": 1}, "length_penalty"), ({"prompt": "a", "min_tokens": 1}, "min_tokens"), ({"prompt": "a", "model": 7}, "model"),
    ({"prompt": "a", "echo": "yes"}, "echo"), ({"prompt": "a", "logprobs": 0, "beam_size": 2}, "logprobs"),
]  # fmt: skip


@pytest.mark.acceptance("E5", "R6")
@pytest.mark.parametrize(("body", "param"), WRONG, ids=[str(body)[:60] for body, _ in WRONG])
def test_wrong_fields_are_named(speaker, canary, body, param):
    assert refused(speaker.ask("/v1/completions", body))["param"] == param


@pytest.mark.acceptance("E6")
@pytest.mark.parametrize("name", ["n", "max_tokens", "top_k", "beam_size", "min_tokens", "seed", "logprobs"])
def test_whole_numbers_are_bounded_before_anything_is_made_of_them(speaker, canary, name):
    limits = Limits()
    most = {"n": limits.n, "max_tokens": limits.max_tokens, "beam_size": limits.beams, "min_tokens": limits.max_tokens,
            "top_k": 2**31 - 1, "seed": 2**63 - 1, "logprobs": 5}[name]  # fmt: skip
    least = 0 if name in ("top_k", "min_tokens", "seed", "logprobs") else 1
    before = psutil.Process().memory_info().rss
    for value in (-1, least - 1, most + 1, 2**63, 2**64, -(2**63), 1e308, 1.0, "7", True, None, [1], {}):
        error = refused(speaker.ask("/v1/completions", {"prompt": "a", name: value}))
        assert error["param"] == name, value
    assert psutil.Process().memory_info().rss - before < 10 * 2**20
    if name == "min_tokens":  # within bounds, and more than may be said
        error = refused(
            speaker.ask("/v1/completions", {"prompt": "a", name: most, "max_tokens": 2, "beam_size": 2})
        )
        assert error["param"] == name
        assert "more than the 2 tokens that this output may have" in error["message"]
        most = 2
    for value in {least, min(most, 2**53)} - {0}:
        fits = {"truncate": True, "stop": ["a"]} if name == "max_tokens" else {"max_tokens": 2}
        beams = {"beam_size": 2} if name == "min_tokens" else {}
        assert (
            speaker.ask("/v1/completions", {"prompt": "a", name: value, **fits, **beams}).status_code == 200
        ), value


@pytest.mark.acceptance("C9")
@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-38, 1e-6, 1, 1e3])
def test_every_temperature_that_is_one_can_be_drawn_with(speaker, canary, temperature):
    (wanted,) = speaker.run.generate(["dogs"], temperature=temperature, seed=1)
    answer = speaker.ask("/v1/completions", {"prompt": "dogs", "temperature": temperature, "seed": 1}).json()
    assert answer["choices"][0]["text"] == wanted


def test_a_misspelt_field_that_is_needed_is_answered_with_the_right_name(speaker, canary):
    error = refused(speaker.ask("/v1/completions", {"promt": "a dog"}))
    assert error["param"] == "prompt"
    assert (
        error["message"]
        == "prompt: missing; it has no default; field 'promt' is ignored; did you mean 'prompt'?"
    )


def test_another_name_of_a_field_that_is_needed_is_not_taken_for_a_third_one(speaker, canary):
    for route, body, needed in (
        ("/v1/score", {"text": "a dog"}, "input"),
        ("/v1/completions", {"input": "a dog"}, "prompt"),
    ):
        error = refused(speaker.ask(route, body))
        assert error["param"] == needed
        (name,) = body
        assert error["message"] == f"{needed}: missing; it has no default; field {name!r} is ignored"


def test_unknown_fields_are_told_in_a_header_or_refused_if_the_service_is_strict(speaker, serving):
    body = {
        "prompt": "a",
        "max_tokens": 1,
        "temperatur": 0.1,
        "user": "x\r\ny",
        "frequency_penalty": 0,
        "logit_bias": None,
        "best_of": 1,
    }
    answer = speaker.ask("/v1/completions", body)
    assert answer.status_code == 200
    assert (
        answer.headers["x-warnings"]
        == "field 'temperatur' is ignored; did you mean 'temperature'?; field 'user' is ignored"
    )
    with serving(speaker.run, strict_fields=True) as strict:
        error = refused(strict.ask("/v1/completions", body))
        assert error["param"] == "temperatur" and "did you mean 'temperature'?" in error["message"]


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
    assert error["message"] == "tokens: '1', which stands at 1, is not a token id" and shown == ["1"]
    error = refused(
        speaker.ask("/v1/completions", {"prompt": "a", "tools": [1], **dict.fromkeys(map(str, range(9)))})
    )
    assert error["param"] == "tools"  # however many come before it that are only ignored


@pytest.mark.acceptance("E12", "E6")
def test_messages_that_say_nothing_are_counted_too(serving, maker, canary):
    with serving(maker("decoder"), chat=Choice("plain")) as live:
        for role in ("user", "assistant"):
            body = {"messages": [{"role": role, "content": ""}] * 50000, "truncate": True}
            error = refused(live.ask("/v1/chat/completions", body))
            assert error["code"] == "text_too_long" and error["param"] == "messages"


@pytest.mark.parametrize(
    ("kind", "path", "body", "able"),
    [
        ("encoder", "/v1/completions", {"prompt": "a"}, "/v1/embeddings, /v1/fill-mask"),
        ("encoder", "/v1/translations", {"input": "a"}, "/v1/embeddings, /v1/fill-mask"),
        ("decoder", "/v1/translations", {"input": "a"}, "/v1/completions, /v1/score"),
        (
            "decoder",
            "/v1/fill-mask",
            {"input": "a", "stream": True},
            "/v1/completions, /v1/score, /v1/embeddings",
        ),
        ("classifier", "/v1/fill-mask", {"input": "a <mask>"}, "/v1/classify, /v1/embeddings"),
        ("encoder-decoder", "/v1/classify", {"input": "a"}, "/v1/translations, /v1/completions"),
        ("encoder", "/v1/score", {"input": "a"}, "/v1/embeddings"),
    ],
)
def test_a_task_of_another_kind_is_refused_with_those_that_there_are(services, kind, path, body, able):
    error = refused(services[kind].ask(path, body))
    assert error["code"] == "wrong_task" and able in error["message"]


def test_other_paths_methods_and_media_have_the_same_envelope(speaker):
    for path in ("/v1", "/v1/complete", "/admin", "/v1/completions/", "/docs"):
        assert refused(speaker.ask(path), 404)["code"] == "not_found"
    answer = speaker.ask("/v1/completions")
    assert refused(answer, 405) and answer.headers["allow"] == "POST"
    assert refused(speaker.http.delete("/v1/models"), 405)
    assert refused(speaker.http.post("/v1/completions", content=b"prompt=a"), 415)
    assert refused(speaker.http.post("/v1/completions", data={"prompt": "a"}), 415)
    assert refused(post(speaker, b"\x1f\x8b" + b"\0" * 999, **{"content-encoding": "gzip"}), 415)
    assert speaker.http.head("/v1/models").status_code == 200 and speaker.http.head("/v1/models").text == ""


@pytest.mark.acceptance("F6")
@pytest.mark.parametrize(
    "name",
    [
        "../tiny",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/tiny",
        "/etc/passwd",
        "tiny%00",
        "\\\\host\\share",
        "tiny/../tiny",
        "tiny ",
        "x" * 5000,
    ],
)
def test_names_of_models_are_looked_up_and_nothing_else(speaker, name):
    with speaker.raw() as sock:  # a client's library would tidy the path
        sock.sendall(
            f"GET /v1/models/{name.replace(' ', '%20')} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")
    assert b" 404 " in head and json.loads(body)["error"]["code"] == "model_not_found"
    assert refused(speaker.ask("/v1/completions", {"prompt": "a", "model": name}), 404)["param"] == "model"
    assert speaker.ask("/v1/models/tiny").json()["id"] == "tiny"


@pytest.mark.acceptance("E7")
def test_bodies_and_heads_are_bounded(speaker, canary):
    most = Limits().body
    assert refused(post(speaker, b" " * (most + 1)), 413)["code"] == "body_too_large"
    assert (
        refused(post(speaker, (b" " * 2**16 for _ in range(most // 2**16 + 2))), 413)["code"]
        == "body_too_large"
    )
    assert (
        refused(speaker.ask("/v1/models", headers={"x-filler": "x" * 65_536}), 431)["code"]
        == "head_too_large"
    )
    assert refused(speaker.ask("/v1/models", headers={f"x-filler-{i}": "x" * 60 for i in range(250)}), 431)
    for whole in (  # in one piece, and as names that come together
        b"GET /health?%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a" * 20_000),
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: %b\r\n" % (b"b" * 1000) * 20 + b"\r\n",
    ):
        with speaker.raw() as sock:
            sock.sendall(whole)
            assert sock.recv(4096).startswith(b"HTTP/1.1 431 ")
    with speaker.raw() as sock:  # a head without end
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nx: ")
        try:
            for _ in range(50):
                sock.sendall(b"x" * 1000)
                time.sleep(0.001)
            answer = sock.recv(65536)
        except ConnectionError:
            answer = b""
    assert not answer or b"bad_http" in answer


RAW = [
    b"\r\n\r\n", b"GET\r\n\r\n", b"nonsense\r\n\r\n", b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}   ",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nhello\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: -5\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\x00" * 20_000,
]  # fmt: skip


@pytest.mark.acceptance("E7", "R6")
@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
def test_what_is_no_http_is_told_so_in_json_and_hung_up_on(speaker, canary, raw):
    with speaker.raw() as sock:
        sock.sendall(raw)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    if answer:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.split()[1] in (b"400", b"415"), head
        assert json.loads(body)["error"]["code"]


def test_an_old_client_and_one_that_does_not_wait_for_answers(speaker, canary):
    body = json.dumps({"prompt": "dogs", "seed": 1, "max_tokens": 4}).encode()
    ask = (
        b"POST /v1/completions HTTP/1.%d\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        + str(len(body)).encode()
        + b"\r\n%s\r\n"
        + body
    )
    with speaker.raw() as sock:
        sock.sendall(ask % (1, b"") + ask % (1, b"Connection: close\r\n"))
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    assert answer.count(b"HTTP/1.1 200") == 2
    with speaker.raw() as sock:
        sock.sendall(ask % (0, b""))
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    assert b"200" in answer.split(b"\r\n")[0]


@pytest.mark.acceptance("E8")
def test_the_id_of_a_request_is_taken_over_only_if_it_is_a_plain_word(speaker):
    assert (
        speaker.ask("/v1/models", headers={"x-request-id": "job.7_a-B"}).headers["x-request-id"]
        == "job.7_a-B"
    )
    for odd in ("a b", "x" * 65, "x" * 10_000, "a/b", "<b>", "ä".encode(), ""):
        minted = speaker.ask("/v1/models", headers={"x-request-id": odd}).headers["x-request-id"]
        assert len(minted) == 32 and minted.isalnum()
    body = {"prompt": "dogs", "max_tokens": 3}
    ids = {
        speaker.ask("/v1/completions", body, headers={"x-request-id": "same"}).json()["id"] for _ in range(3)
    }
    assert len(ids) == 3, "what we call a request is ours"


@pytest.mark.acceptance("F7", "F8")
def test_every_route_wants_a_key_but_the_pulse_and_the_page(runs, serving):
    key, other = "k" * 24, "another-key-of-the-service"
    with serving(runs["decoder"], keys=ApiKeys([key, other])) as live:
        for route in ROUTES:
            path = route.path.replace("{id}", "tiny")
            for headers in (
                {},
                {"authorization": "Bearer wrong-key-wrong-key"},
                {"authorization": f"Basic {key}"},
                {"authorization": f"Bearer {key}x"},
                {"authorization": "Bearer"},
            ):
                answer = live.http.request(
                    route.method, path, headers=headers, json={"prompt": "a"} if route.body else None
                )
                if path in ("/", "/health/live"):
                    assert answer.status_code == 200 and "tiny" not in answer.text
                else:
                    assert refused(answer, 401)["code"] == "invalid_api_key"
        for known in (key, other):
            assert live.ask("/v1/models", headers={"authorization": f"Bearer {known}"}).status_code == 200
        assert key not in json.dumps({k: repr(v) for k, v in vars(live.service.api_keys).items()})


@pytest.mark.acceptance("F7")
def test_who_can_be_reached_by_others_must_have_a_key(tmp_path):
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        check_host(host, ApiKeys())
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(ValueError, match="can be reached by others"):
            check_host(host, ApiKeys())
        check_host(host, ApiKeys(["k" * 24]))
    file = tmp_path / "keys.txt"
    file.write_text("# of the first team\n" + "a" * 20 + "\n\n")
    environment = {"POLYHEAD_API_KEY": "b" * 20, "PATH": "x"}
    keys = read_keys(file, environment)
    assert environment == {"PATH": "x"}, "no child inherits it"
    for key in ("a" * 20, "b" * 20):
        keys.check({"authorization": f"Bearer {key}"})
    for content, said in (
        ("", "holds no key"),
        ("short\n", "too short"),
        ("with blanks in the key\n", "odd characters"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=said):
            read_keys(file, {})


@pytest.mark.acceptance("F8")
def test_keys_are_compared_in_constant_time():
    import ast
    import inspect

    from polyhead.serve.http import auth

    tree = ast.parse(inspect.getsource(auth.ApiKeys))
    assert not [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.In) for op in node.ops)
    ]
    assert "hmac.compare_digest" in ast.unparse(tree)


def test_without_keys_a_page_of_the_web_cannot_ask_through_a_name_of_its_own(speaker):
    assert refused(speaker.ask("/v1/models", headers={"host": "evil.example"}), 403)["code"] == "wrong_host"
    assert speaker.ask("/v1/models", headers={"host": "LocalHost.:8000"}).status_code == 200
    for host in ("localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000"):
        assert speaker.ask("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.acceptance("F11")
def test_the_series_of_the_metrics_do_not_grow_with_what_clients_say(speaker):
    def series():
        return {
            line.rpartition(" ")[0]
            for line in speaker.ask("/metrics").text.splitlines()
            if not line.startswith("#")
        }

    speaker.ask("/v1/completions", {"prompt": "a", "model": "none"})
    speaker.ask("/v1/models/none")
    speaker.ask("/none")
    speaker.http.request("BREW", "/none")
    before = series() | series()
    for number in range(100):
        speaker.ask(
            "/v1/completions",
            {"prompt": "a", "model": f"model-{number}"},
            headers={"x-request-id": f"id-{number}"},
        )
        speaker.ask(f"/v1/models/model-{number}")
        speaker.ask(f"/path-{number}")
    speaker.http.request("BREWING", "/none")
    assert series() == before


@pytest.mark.acceptance("F11")
def test_no_text_and_no_key_gets_into_the_log(runs, serving, caplog):
    caplog.set_level(0)
    with serving(runs["decoder"], keys=ApiKeys(["secret-key-of-somebody"])) as live:
        headers = {"authorization": "Bearer secret-key-of-somebody"}
        live.ask("/v1/completions", {"prompt": "secret words", "max_tokens": 2}, headers=headers)
        live.ask("/v1/completions", {"prompt": "secret words " * 60}, headers=headers)
        live.ask(
            "/v1/completions?q=secret", {"prompt": ["secret"], "secret": 1, "seed": "secret"}, headers=headers
        )
        live.ask("/v1/models/secret", headers=headers)
        live.ask("/secret", headers={"authorization": "Bearer secret-key-that-is-wrong"})
        step = live.service.engine.engine.step

        said = "secret words"

        def broken():
            raise RuntimeError(said)

        live.service.engine.engine.step = broken
        refused(live.ask("/v1/completions", {"prompt": "secret words"}, headers=headers), 500)
        live.service.engine.engine.step = step
    own = [record for record in caplog.records if record.name.startswith("polyhead")]
    assert len(own) > 5
    assert not [record for record in own if "secret" in record.getMessage()]


@pytest.mark.acceptance("F5")
def test_nothing_is_ever_fetched(speaker, translator, monkeypatch):
    tried = []
    connect = socket.socket.connect

    def watched(sock, place):
        tried.append(place)
        return connect(sock, place)

    monkeypatch.setattr(socket.socket, "connect", watched)
    url = "http://127.0.0.1:9/secret"
    raw = speaker.raw()  # create_connection goes through it: the watch works
    raw.close()
    assert tried == [speaker.sock.getsockname()[:2]]
    for live, path, body in (
        (
            speaker,
            "/v1/completions",
            {"prompt": url, "max_tokens": 1, "model": "tiny", "image_url": url, "user": url},
        ),
        (translator, "/v1/translations", {"input": url, "truncate": True}),
    ):
        live.ask(path, body)
        live.ask("/v1/models/" + url)
    assert {place[1] for place in tried} <= {speaker.sock.getsockname()[1], translator.sock.getsockname()[1]}


def test_what_names_no_language_is_no_task_of_a_model_of_several(serving):
    run = make("encoder-decoder")
    inner = Inner.from_str(run.tokenizer._inner.to_str())
    ids = [inner.get_vocab_size() + i for i in range(2)]
    inner.add_special_tokens([">>deu<<", ">>fra<<"])
    larger = ModelConfig.model_validate(run.config.model_dump() | {"vocab_size": ids[-1] + 1})
    several = Run(build(larger, seed=1), Tokenizer(inner, run.tokenizer._roles), run.generation)
    with serving(several) as live:
        (about,) = live.ask("/v1/models").json()["data"]
        assert about["polyhead"]["tasks"] == ["translations"]
        for path, body in (
            ("completions", {"prompt": "a dog"}),
            ("score", {"input": "a dog", "target": "hund"}),
        ):
            assert "several languages; name the target's" in refused(live.ask(f"/v1/{path}", body))["message"]
        assert live.ask("/v1/translations", {"input": "a dog", "target": "deu"}).status_code == 200


def test_a_service_that_could_do_nothing_does_not_start(serving):
    runs = [make("encoder", head=False) for _ in range(2)]
    with (
        pytest.raises(UserError, match="vectors are of one run, not of 2"),
        serving(ensemble_runs(runs)),
    ):
        pass
