import socket
import time
import weakref

import pytest
from tests.serve.conftest import get_error, read_all, serve_run, wait_until

from polyhead.serve import engine_thread
from polyhead.serve.http import app
from polyhead.serve.http.http_exchange import dump_json, dump_json_list
from polyhead.serve.limits import Limits


@pytest.mark.parametrize(
    ("kind", "path", "body", "status"),
    [
        ("decoder", "completions", {"prompt": "dogs " * 100}, 400),
        ("decoder", "completions", {"prompt": "dogs", "n": 30}, 400),
        ("decoder", "completions", {"prompt": "dogs"}, 500),
        ("encoder", "fill-mask", {"input": ["no hole"]}, 400),
        ("encoder", "fill-mask", {"input": ["a <mask>"], "model": "another"}, 404),
    ],
)
def test_refused_request_is_freed_without_gc(runs, monkeypatch, gc_disabled, kind, path, body, status):
    """An error references its frames, and those the request, which may have megabytes."""
    references = weakref.WeakSet()

    def track(cls):
        def create(*args):
            instance = cls(*args)
            references.add(instance)
            return instance

        return create

    monkeypatch.setattr(app, "HttpExchange", track(app.HttpExchange))
    monkeypatch.setattr(engine_thread, "Future", track(engine_thread.Future))
    with serve_run(runs[kind]) as client:
        if status == 500:
            monkeypatch.setattr(client.service.engine.engine, "_schedule", lambda: 1 / 0)
        assert client.ask(f"/v1/{path}", body).status_code == status
        client.wait_idle()
        wait_until(lambda: not references)


@pytest.mark.acceptance("E7")
def test_bodies_and_heads_are_limited(checked_client):
    client, limit = checked_client, Limits().max_body
    chunks = (b" " * 2**16 for _ in range(limit // 2**16 + 2))
    for content in (b" " * (limit + 1), chunks):
        assert get_error(client.post(content), 413)["code"] == "body_too_large"
    for headers in ({"x-filler": "x" * 65_536}, {f"x-filler-{i}": "x" * 60 for i in range(250)}):
        assert get_error(client.ask("/v1/models", headers=headers), 431)["code"] == "head_too_large"
    for head in (  # in one line, and in many
        b"GET /health?%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a" * 20_000),
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: %b\r\n" % (b"b" * 1000) * 20 + b"\r\n",
    ):
        with client.connect() as sock:
            sock.sendall(head)
            assert sock.recv(4096).startswith(b"HTTP/1.1 431 ")
    connections = client.server.server_state.connections
    num_connections = len(connections)
    with client.connect() as sock:  # a head without end, of which more arrives after the answer
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nx: ")
        for _ in range(50):
            sock.sendall(b"x" * 1000)
            time.sleep(0.001)
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 431 ") and b"head_too_large" in answer
    wait_until(lambda: len(connections) <= num_connections)


@pytest.mark.acceptance("E8")
def test_request_id_of_the_client_must_be_plain(client):
    def get_id(value):
        return client.ask("/v1/models", headers={"x-request-id": value}).headers["x-request-id"]

    assert get_id("job.7_a-B") == "job.7_a-B"
    assert get_id("x" * 64) == "x" * 64
    for value in ("a b", "x" * 65, "x" * 10_000, "a/b", "<b>", "ä".encode(), ""):
        assert len(get_id(value)) == 32 and get_id(value).isalnum()
    body, headers = {"prompt": "dogs", "max_tokens": 3}, {"x-request-id": "same"}
    ids = {client.ask("/v1/completions", body, headers=headers).json()["id"] for _ in range(3)}
    assert len(ids) == 3, "completions have ids of their own"


INVALID_BODIES = [
    *(b"", b"{", b"[]", b"7", b"null", b'"text"', b"\xff\xfe", b'\xef\xbb\xbf{"prompt": "x"}'),
    *(b'{"prompt": NaN}', b'{"temperature": Infinity, "prompt": ""}', b'{"prompt": "x", "top_p": 1e999}'),
    *(b'{"prompt": "x", "prompt": "y"}', b'{"prompt": "x"} trailing', b"[" * 10**5, b'{"a":' * 10**5),
    *(b'{"prompt": "\\ud800"}', b'{"prompt": "x", "\\udfff": 1}', b'{"prompt": "\xed\xa0\x80"}'),
    b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
]


@pytest.mark.acceptance("E5", "E7", "E11", "R6")
def test_invalid_json_is_refused(checked_client):
    for body in INVALID_BODIES:
        assert get_error(checked_client.post(body))["code"] == "invalid_json", body[:50]
    fields = {"object": "list", "usage": {"total": 3}}
    for items in ([], [{"index": 0, "text": "ä"}], [1.5, "x", None]):
        assert dump_json_list(fields, "data", iter(items)) == dump_json({**fields, "data": items})
