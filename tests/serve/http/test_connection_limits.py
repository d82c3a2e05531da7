"""What happens on a connection before a request is complete, and after its answer."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from types import SimpleNamespace

import pytest
from tests.serve.refusals_helpers import canary as canary

from polyhead.serve.http import connection_limits
from polyhead.serve.http.auth import ApiKeys
from polyhead.serve.http.connection_limits import count_unread_bytes
from polyhead.serve.http.limits import Limits

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def read_all(sock):
    return b"".join(iter(lambda: sock.recv(65536), b""))


def read_answer(sock):
    answer = b""
    while not answer.endswith(b"}"):
        piece = sock.recv(65536)
        assert piece, "cut off"
        answer += piece
    return answer


@pytest.mark.acceptance("E10")
def test_connections_beyond_the_limit_are_refused(runs, serving):
    with serving(runs["decoder"], limits=Limits(max_connections=1)) as live, live.raw() as first:
        first.sendall(LIVE)
        assert read_answer(first).startswith(b"HTTP/1.1 200 ")
        with live.raw() as second:
            second.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head, _, body = read_all(second).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        live.until(lambda: len(live.server.server_state.connections) == 1, "the second is gone")
        first.sendall(LIVE)
        assert read_answer(first).startswith(b"HTTP/1.1 200 ")


@pytest.mark.acceptance("E10")
def test_a_health_check_is_answered_at_a_flood_of_connections(runs, serving, monkeypatch):
    monkeypatch.setattr(connection_limits, "RESERVED_TIMEOUT", 60.0)
    n_reserved = connection_limits.RESERVED_CONNECTIONS
    with serving(runs["decoder"], limits=Limits(max_connections=2)) as live, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(live.raw()) for _ in range(2 + 3 * n_reserved)]
        slow = stack.enter_context(live.raw())
        slow.sendall(POST + b"Content-Length: 1000\r\n\r\n")  # without its body
        assert b"too_many_connections" in read_all(slow)
        for _ in range(3):
            with live.raw() as sock:
                sock.sendall(LIVE)
                answer = read_all(sock)  # which ends: such a connection is closed after its answer
            assert answer.startswith(b"HTTP/1.1 200 ") and b"connection: close" in answer
        oldest = idle[2 : 2 + n_reserved]
        assert all(b"too_many_connections" in read_all(sock) for sock in oldest)
        connections = live.server.server_state.connections
        live.until(lambda: len(connections) <= 2 + n_reserved, "a few more than the limit")


def test_an_idle_connection_beyond_the_limit_ends_soon(runs, serving, monkeypatch):
    monkeypatch.setattr(connection_limits, "RESERVED_TIMEOUT", 0.1)
    with serving(runs["decoder"], limits=Limits(max_connections=1)) as live, live.raw(), live.raw() as second:
        assert b"too_many_connections" in read_all(second)


@pytest.mark.acceptance("E7")
def test_a_head_that_does_not_end_after_an_answer_is_cut_off(runs, serving):
    """uvicorn stops its keep-alive timer at the first byte."""
    with serving(runs["decoder"], limits=Limits(header_timeout=0.3)) as live, live.raw() as sock:
        sock.sendall(LIVE)
        assert read_answer(sock).startswith(b"HTTP/1.1 200 ")
        sock.sendall(b"GET /heal")
        live.until(lambda: not live.server.server_state.connections, "the connection is gone")


def test_a_connection_without_data_is_kept_after_an_answer(runs, serving, slowly):
    """The deadline is that of a head: neither of an answer nor of the time between two requests."""
    with serving(runs["decoder"], limits=Limits(header_timeout=0.2)) as live, live.raw() as sock:
        body = json.dumps({"prompt": "dogs", "max_tokens": 3, "stop": ["never said"]}).encode()
        with slowly(live) as engine:
            sock.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body))
            time.sleep(0.1)  # so that the body comes by itself
            sock.sendall(body)
            live.until(lambda: engine.entered == 1, "it runs")
            sock.settimeout(0.5)
            with pytest.raises(TimeoutError):
                sock.recv(65536)
            sock.settimeout(30)
            engine.let(1000)
            assert read_answer(sock).startswith(b"HTTP/1.1 200 ")
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            sock.recv(65536)
        sock.settimeout(30)
        sock.sendall(LIVE)
        assert read_answer(sock).startswith(b"HTTP/1.1 200 ")


def test_malformed_data_behind_a_request_is_answered_in_json(speaker):
    with speaker.raw() as sock:
        sock.sendall(LIVE + b"nonsense\r\n\r\n")
        answer = read_all(sock)
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 400 ") == 1
    head, _, body = answer.partition(b"HTTP/1.1 400 ")[2].partition(b"\r\n\r\n")
    assert b"application/json" in head and json.loads(body)["error"]["code"] == "bad_http"


def test_a_body_that_is_too_large_in_its_last_piece_keeps_the_connection(runs, serving):
    """Nothing of it is left to discard: the next request is answered."""
    with serving(runs["decoder"], limits=Limits(max_body=1000)) as live, live.raw() as sock:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (2000, b" " * 2000)
        sock.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + body)
        assert read_answer(sock).startswith(b"HTTP/1.1 413 ")
        sock.sendall(LIVE)
        assert read_answer(sock).startswith(b"HTTP/1.1 200 ")


def test_malformed_data_after_an_answer_closes_the_connection(runs, serving, caplog):
    caplog.set_level(logging.WARNING, "asyncio")
    with serving(runs["decoder"], keys=ApiKeys(["k" * 20])) as live:
        with live.raw() as sock:
            sock.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
            assert read_answer(sock).startswith(b"HTTP/1.1 401 ")
            sock.sendall(b"ZZ\r\n")
            assert not read_all(sock), "an answer has gone out already"
        live.until(lambda: not live.server.server_state.connections, "the connection is gone")
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.acceptance("E7")
def test_of_what_is_sent_ahead_little_is_read(runs, serving, slowly):
    with serving(runs["decoder"]) as live, slowly(live) as engine, live.raw() as sock:
        body = json.dumps({"prompt": "dogs", "max_tokens": 30, "stop": ["never said"]}).encode()
        sock.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        live.until(lambda: engine.entered == 1, "it runs")
        (connection,) = live.server.server_state.connections
        sock.sendall(LIVE)
        assert connection.transport.is_reading(), "to notice when the client leaves"
        sock.sendall(LIVE * 2000)
        live.until(lambda: not connection.transport.is_reading(), "it is not read on")
        engine.let(1000)
        answer = b""
        while answer.count(b"HTTP/1.1 200 ") < 2002:
            answer += sock.recv(65536)


def test_a_refusal_is_logged_before_its_body_has_come(runs, serving, caplog):
    """The time of an answer is not that of the client that still sends."""
    caplog.set_level(logging.INFO, "polyhead.serve")
    with serving(runs["decoder"], keys=ApiKeys(["k" * 20])) as live, live.raw() as sock:
        sock.sendall(POST + b"Content-Length: 1000\r\n\r\n")
        assert read_answer(sock).startswith(b"HTTP/1.1 401 ")
        live.until(lambda: "POST /v1/completions 401" in caplog.text, "it is logged")
        sock.sendall(b" " * 1000 + LIVE)
        assert read_answer(sock).startswith(b"HTTP/1.1 200 ")


BODY = {"prompt": "a dog barks .", "max_tokens": 30, "seed": 1, "stop": ["never said"]}


def little_buffer(live, body):
    """A request whose answer the system keeps almost nothing of until it is read."""
    sock = socket.socket()
    sock.settimeout(30)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(live.sock.getsockname()[:2])
    content = json.dumps(body).encode()
    sock.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(content) + content
    )
    return sock


LONG = BODY | {
    "prompt": "a",
    "n": 8,
    "max_tokens": 100_000,
    "truncate": True,
    "logprobs": 0,
}  # 100 kB; 600 kB as a stream


@pytest.mark.acceptance("E2")
@pytest.mark.parametrize("said", [False, True], ids=["while the model speaks", "when all has been said"])
def test_who_stops_reading_is_cut_off_and_does_not_hold_a_place(runs, serving, slowly, said):
    limits = Limits(write_timeout=4.0 if said else 0.3, max_tokens=100_000, max_body=2**25)
    with serving(runs["decoder"], limits=limits) as live, slowly(live) as engine:
        sock = little_buffer(live, LONG | {"stream": True})
        live.until(lambda: engine.entered == 1, "it runs")
        engine.let(100_000 if said else 400)  # more than is taken without being read
        if said:
            live.idle()
        disconnected = live.service.metrics.aborted_requests.labels("disconnect")._value
        live.until(lambda: disconnected.get() == 1, "it was cut off")
        engine.let(100_000)
        live.idle()
        assert said or engine.steps <= 401
        sock.close()


@pytest.mark.acceptance("E2")
def test_who_does_not_read_a_short_answer_does_not_hold_its_connection(runs, serving, monkeypatch):
    monkeypatch.setattr("polyhead.serve.http.connection_limits.SEND_BUFFER_BYTES", 4096)
    with serving(
        runs["decoder"], limits=Limits(write_timeout=0.3, max_tokens=100_000, max_body=2**25)
    ) as live:
        sock = little_buffer(live, LONG | {"max_tokens": 150})
        connections = live.server.server_state.connections
        live.until(lambda: len(connections) == 1, "it is there")
        live.until(lambda: not connections, "it was cut off")
        sock.close()


@pytest.mark.acceptance("E2")
def test_who_reads_slowly_gets_all(runs, serving, monkeypatch):
    monkeypatch.setattr("polyhead.serve.http.connection_limits.SEND_BUFFER_BYTES", 4096)
    with serving(
        runs["decoder"], limits=Limits(write_timeout=1.0, max_tokens=100_000, max_body=2**25)
    ) as live:
        wanted = live.ask("/v1/completions", LONG).json()["choices"]
        sock, answer = little_buffer(live, LONG), b""
        while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
            time.sleep(0.05)
            piece = sock.recv(4096)
            assert piece, "cut off"
            answer += piece
        assert len(answer) > 80_000  # two seconds
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"] == wanted
        sock.close()


@pytest.mark.acceptance("E2")
def test_what_the_system_keeps_is_unread_too():
    """A client's reading shows in the system before it shows in ours, for that refills from a part that is
    free.
    """
    with socket.create_server(("127.0.0.1", 0)) as listens:
        theirs = socket.create_connection(listens.getsockname())
        ours, _ = listens.accept()
    with theirs, ours:
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(b"x" * 65536)
        transport = SimpleNamespace(get_extra_info=lambda _: ours, get_write_buffer_size=lambda: 7)
        assert count_unread_bytes(transport) > 65536
        while count_unread_bytes(transport) > 7:
            assert theirs.recv(65536)


@pytest.mark.acceptance("E2")
def test_a_body_that_comes_after_its_refusal_leaves_no_connection_for_ever(runs, serving):
    with serving(runs["decoder"], keys=ApiKeys(["k" * 20])) as live:
        live.server.config.timeout_keep_alive = 0.5
        sock = live.raw()
        content = json.dumps(BODY).encode()
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(content)
        )
        assert sock.recv(65536).startswith(b"HTTP/1.1 401 ")
        sock.sendall(content)
        live.until(lambda: not live.server.server_state.connections, "it is closed as any that rests")
        sock.close()


@pytest.mark.parametrize("header", ["", "Connection: close\r\n"], ids=["kept", "closed"])
def test_a_refusal_reaches_who_is_still_sending_its_body(runs, serving, header):
    """A socket that is closed over what it has not read is reset, and what was written to it is lost."""
    whole = 8_000_000
    with serving(runs["decoder"], keys=ApiKeys(["right"])) as live:
        for _ in range(5):
            with live.raw() as sock:
                sock.sendall(
                    f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{header}Content-Length: "
                    f"{whole}\r\n\r\n".encode()
                )
                sock.sendall(b" " * whole)
                assert sock.recv(2**16).startswith(b"HTTP/1.1 401 ")
        live.until(lambda: not live.server.server_state.connections, "nothing is left")


def test_who_sends_on_behind_a_last_answer_is_cut_off(runs, serving):
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
        b"9000\r\n\r\n"
    )
    with serving(runs["decoder"], keys=ApiKeys(["right"]), limits=Limits(body_timeout=0.3)) as live:
        with live.raw() as sock:
            sock.sendall(head)
            assert sock.makefile("rb").read().startswith(b"HTTP/1.1 401 "), "and there will be no more"
            with contextlib.suppress(OSError):
                for _ in range(500):
                    sock.sendall(b" ")
                    time.sleep(0.02)
                pytest.fail("ten seconds")
        live.until(lambda: not live.server.server_state.connections, "nothing is left")


@pytest.mark.acceptance("R10")
def test_an_answer_that_is_still_being_read_is_not_cut_by_the_end(runs, serving, monkeypatch):
    monkeypatch.setattr("polyhead.serve.http.connection_limits.SEND_BUFFER_BYTES", 4096)
    with serving(runs["decoder"], limits=Limits(max_tokens=100_000, max_body=2**25)) as live:
        sock = little_buffer(live, LONG)
        answer = sock.recv(1000)
        live.server.drain()
        while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
            time.sleep(0.1)
            piece = sock.recv(4096)
            assert piece, "cut off"
            answer += piece
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] > 1000
        live.thread.join(20)
        assert not live.thread.is_alive()
        sock.close()


@pytest.mark.acceptance("E7")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: loc",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        b"99\r\n\r\n{",
    ],
)
def test_who_sends_a_byte_at_a_time_is_cut_off(runs, serving, sent):
    with (
        serving(runs["decoder"], limits=Limits(header_timeout=0.3, body_timeout=0.3)) as live,
        live.raw() as sock,
    ):
        sock.sendall(sent)
        answer = b""
        try:
            while piece := sock.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
        assert not answer or b" 408 " in answer.split(b"\r\n")[0]
        live.until(lambda: not live.server.server_state.connections, "the connection is gone")


RAW = [
    b"\r\n\r\n", b"GET\r\n\r\n", b"nonsense\r\n\r\n", b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: "
        b"b\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    b"5\r\nContent-Length: 6\r\n\r\n{}   ",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
    b"application/json\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nhello\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    b"-5\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\x00" * 20_000,
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
        b"POST /v1/completions HTTP/1.%d\r\nHost: localhost\r\nContent-Type: "
        b"application/json\r\nContent-Length: " + str(len(body)).encode() + b"\r\n%s\r\n" + body
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
