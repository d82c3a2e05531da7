"""Tests of serve/http/http_exchange.py."""

from __future__ import annotations

import socket
import time
import weakref

import pytest
from tests.serve.http.test_connection_limits import read_all
from tests.serve.refusals_helpers import canary as canary
from tests.serve.refusals_helpers import post, refused

from polyhead.serve import engine_thread
from polyhead.serve.http import app
from polyhead.serve.http.limits import Limits


@pytest.mark.parametrize(
    ("kind", "path", "body", "code"),
    [
        ("decoder", "completions", {"prompt": "dogs " * 100}, 400),
        ("decoder", "completions", {"prompt": "dogs", "n": 30}, 400),
        ("decoder", "completions", {"prompt": "dogs"}, 500),
        ("encoder", "fill-mask", {"input": ["no hole"]}, 400),
        ("encoder", "fill-mask", {"input": ["a <mask>"], "model": "another"}, 404),
    ],
)
def test_a_refusal_is_told_and_forgotten_with_what_was_asked(
    runs, serving, monkeypatch, unsearched, kind, path, body, code
):
    """An error knows the frames that it went through, and those what came, which may be megabytes."""
    known = weakref.WeakSet()

    def noted(make):
        def made(*given):
            known.add(one := make(*given))
            return one

        return made

    monkeypatch.setattr(app, "HttpExchange", noted(app.HttpExchange))
    monkeypatch.setattr(engine_thread, "Future", noted(engine_thread.Future))
    with serving(runs[kind]) as live:
        if code == 500:
            monkeypatch.setattr(live.service.engine.engine, "_schedule", lambda: 1 / 0)
        assert live.ask(f"/v1/{path}", body).status_code == code
        live.idle()
        live.until(lambda: not known, "nothing knows of it")


@pytest.mark.acceptance("E7")
def test_bodies_and_heads_are_bounded(speaker, canary):
    most = Limits().max_body
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
    connections = speaker.server.server_state.connections
    before = len(connections)
    with speaker.raw() as sock:  # a head without end, of which more comes when the answer is on its way
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nx: ")
        for _ in range(50):
            sock.sendall(b"x" * 1000)
            time.sleep(0.001)
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 431 ") and b"head_too_large" in answer
    speaker.until(lambda: len(connections) <= before, "who has been refused is let go")


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
