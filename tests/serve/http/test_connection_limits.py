"""Limits of a connection before a request is complete, and after its answer."""

import contextlib
import json
import logging
import socket
import time
from types import SimpleNamespace

import pytest
from tests.serve.conftest import ENDLESS, build_run, read_all, serve_run, wait_until

from polyhead.serve.auth import ApiKeys
from polyhead.serve.http import connection_limits
from polyhead.serve.http.connection_limits import count_unread_bytes
from polyhead.serve.limits import Limits

PING = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
KEYS = ApiKeys(["k" * 20])


def read_answer(sock, delay=0.0, answer=b""):
    """The rest of an answer of JSON, read in small pieces if there is a delay before each."""
    while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
        time.sleep(delay)
        piece = sock.recv(4096 if delay else 65536)
        assert piece, "the connection is closed"
        answer += piece
    return answer


def assert_serves(sock, request=PING):
    sock.sendall(request)
    assert read_answer(sock).startswith(b"HTTP/1.1 200 ")


@contextlib.contextmanager
def expect_no_data(sock):
    sock.settimeout(0.5)
    with pytest.raises(TimeoutError):
        sock.recv(65536)
    sock.settimeout(100)
    yield


@pytest.fixture
def small_buffer(monkeypatch):
    monkeypatch.setattr(connection_limits, "SEND_BUFFER_BYTES", 4096)


@pytest.mark.acceptance("E10")
def test_connections_above_the_limit_are_refused(runs, monkeypatch):
    with serve_run(runs["decoder"], limits=Limits(max_connections=1)) as client, client.connect() as first:
        assert_serves(first)
        with client.connect() as second:
            second.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head, _, body = read_all(second).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        wait_until(lambda: len(client.server.server_state.connections) == 1)
        assert_serves(first)
    monkeypatch.setattr(connection_limits, "RESERVED_TIMEOUT", 0.1)
    with (
        serve_run(runs["decoder"], limits=Limits(max_connections=1)) as client,
        client.connect(),
        client.connect() as second,
    ):
        assert b"too_many_connections" in read_all(second)


@pytest.mark.acceptance("E10")
def test_health_check_is_answered_above_the_limit(runs, monkeypatch):
    monkeypatch.setattr(connection_limits, "RESERVED_TIMEOUT", 60.0)
    n_reserved = connection_limits.RESERVED_CONNECTIONS
    limits = Limits(max_connections=2)
    with serve_run(runs["decoder"], limits=limits) as client, contextlib.ExitStack() as stack:
        unused_sockets = [stack.enter_context(client.connect()) for _ in range(2 + 3 * n_reserved)]
        slow = stack.enter_context(client.connect())
        slow.sendall(POST + b"Content-Length: 1000\r\n\r\n")  # without its body
        assert b"too_many_connections" in read_all(slow)
        for _ in range(3):
            with client.connect() as sock:
                sock.sendall(PING)
                answer = read_all(sock)  # which ends: such a connection is closed after its answer
            assert answer.startswith(b"HTTP/1.1 200 ") and b"connection: close" in answer
        oldest = unused_sockets[2 : 2 + n_reserved]
        assert all(b"too_many_connections" in read_all(sock) for sock in oldest)
        connections = client.server.server_state.connections
        wait_until(lambda: len(connections) <= 2 + n_reserved)


def test_header_timeout_does_not_limit_answers_and_pauses(runs):
    with serve_run(runs["decoder"], limits=Limits(header_timeout=0.2)) as client, client.connect() as sock:
        body = json.dumps({"prompt": "dogs", "max_tokens": 3, "stop": ["never said"]}).encode()
        with client.hold_steps() as steps:
            sock.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body))
            client.wait_read()  # so that the body comes by itself
            sock.sendall(body)
            steps.wait_entered()
            with expect_no_data(sock):
                steps.allow(1000)
            assert read_answer(sock).startswith(b"HTTP/1.1 200 ")
        with expect_no_data(sock):
            assert_serves(sock)


def test_too_large_chunked_body_keeps_the_connection(runs):
    """Nothing of it is left to discard: the next request is answered."""
    with serve_run(runs["decoder"], limits=Limits(max_body=1000)) as client, client.connect() as sock:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (2000, b" " * 2000)
        sock.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + body)
        assert read_answer(sock).startswith(b"HTTP/1.1 413 ")
        assert_serves(sock)


@pytest.mark.acceptance("E7")
def test_little_is_read_of_requests_sent_ahead(runs):
    with (
        serve_run(runs["decoder"]) as client,
        client.hold_steps() as steps,
        client.send({"prompt": "dogs", "max_tokens": 30, "stop": ["never said"]}) as sock,
    ):
        steps.wait_entered()
        (connection,) = client.server.server_state.connections
        sock.sendall(PING)
        assert connection.transport.is_reading(), "to notice a disconnect"
        sock.sendall(PING * 500)
        wait_until(lambda: not connection.transport.is_reading())
        steps.allow(1000)
        answer = b""
        while answer.count(b"HTTP/1.1 200 ") < 502:
            answer += sock.recv(65536)


@pytest.fixture(scope="module")
def key_client(runs):
    """A service that refuses requests without its key before their bodies have come."""
    with serve_run(runs["decoder"], keys=KEYS) as client:
        client.server.config.timeout_keep_alive = 0.5
        yield client


def test_malformed_body_after_a_refusal_closes_the_connection(key_client, caplog):
    caplog.set_level(logging.WARNING, "asyncio")
    with key_client.connect() as sock:
        sock.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        assert read_answer(sock).startswith(b"HTTP/1.1 401 ")
        sock.sendall(b"ZZ\r\n")
        assert not read_all(sock), "the answer has been sent"
    key_client.wait_closed()
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.acceptance("E2")
def test_late_body_of_a_refused_request_is_discarded(key_client, caplog):
    """Then the next request is answered, and the connection closed after a pause."""
    caplog.set_level(logging.INFO, "polyhead.serve")
    with key_client.connect() as sock:
        for rest in (b" " * 1000 + PING, b" " * 1000):
            caplog.clear()
            sock.sendall(POST + b"Content-Length: 1000\r\n\r\n")
            assert read_answer(sock).startswith(b"HTTP/1.1 401 ")
            wait_until(lambda: "POST /v1/completions 401" in caplog.text)  # before the body has arrived
            sock.sendall(rest)
            assert PING not in rest or read_answer(sock).startswith(b"HTTP/1.1 200 ")
        key_client.wait_closed()


@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"], ids=["keep-alive", "close"])
def test_refusal_reaches_a_client_that_sends_its_body(key_client, header):
    """A socket that is closed with unread data is reset, and what was written to it is lost."""
    size = 8_000_000
    for _ in range(3):
        with key_client.connect() as sock:
            sock.sendall(POST + header + b"Content-Length: %d\r\n\r\n" % size)
            sock.sendall(b" " * size)
            assert sock.recv(2**16).startswith(b"HTTP/1.1 401 ")
    key_client.wait_closed()


def test_sending_after_the_last_answer_times_out(runs):
    with serve_run(runs["decoder"], keys=KEYS, limits=Limits(body_timeout=0.3)) as client:
        with client.connect() as sock:
            sock.sendall(POST + b"Connection: close\r\nContent-Length: 9000\r\n\r\n")
            assert sock.makefile("rb").read().startswith(b"HTTP/1.1 401 ")
            with contextlib.suppress(OSError):
                while True:  # until the connection is reset
                    sock.sendall(b" ")
                    time.sleep(0.02)
        client.wait_closed()


LONG = ENDLESS | {"prompt": "a", "n": 8, "max_tokens": 150, "ignore_eos": True, "logprobs": 0}  # 30 kB
LIMITS = Limits(write_timeout=0.3, max_tokens=100_000, max_body=2**25)


def serve_long(**limits):
    """A service with a context for ``LONG``."""
    return serve_run(build_run("decoder", max_len=1000), limits=LIMITS.model_copy(update=limits))


def send_unread(client, body):
    """Send a request on a socket that buffers almost nothing of the answer."""
    sock = socket.socket()
    sock.settimeout(100)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(client.sock.getsockname()[:2])
    content = json.dumps(body).encode()
    sock.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(content) + content)
    return sock


@pytest.mark.acceptance("E2")
def test_client_that_stops_reading_a_stream_is_aborted(small_buffer):
    with (
        serve_long() as client,
        client.hold_steps() as steps,
        send_unread(client, LONG | {"stream": True, "max_tokens": 100_000}),
    ):
        steps.wait_entered()
        steps.allow(200)  # more than is buffered
        wait_until(lambda: client.count_aborted("disconnect") == 1)
        steps.allow(100_000)
        client.wait_idle()
        assert steps.num_steps <= 201


@pytest.mark.acceptance("E2")
@pytest.mark.parametrize("stream", [True, False])
def test_unread_answer_closes_the_connection(small_buffer, stream):
    with (
        serve_long(write_timeout=2.0) as client,
        send_unread(client, LONG | {"stream": stream}),
    ):
        wait_until(lambda: client.service.engine_thread.streams)
        client.wait_idle()
        client.wait_closed()
        wait_until(lambda: not stream or client.count_aborted("disconnect") == 1)


@pytest.mark.acceptance("E2", "R10")
@pytest.mark.parametrize("stops", [False, True])
def test_slow_reader_gets_the_complete_answer(small_buffer, stops):
    """Also from a service that is stopped."""
    with serve_long(write_timeout=0.5) as client:
        expected = client.ask("/v1/completions", LONG).json()["choices"]
        with send_unread(client, LONG) as sock:
            answer = sock.recv(1000)
            if stops:
                client.server.drain()
            answer = read_answer(sock, delay=0.1, answer=answer)
        assert len(answer) > 20_000  # longer than the timeout
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"] == expected
        if stops:
            client.thread.join()


@pytest.mark.acceptance("E2")
def test_data_in_the_socket_buffer_counts_as_unread():
    """Reading shows there before it shows in our own buffer, which refills a buffer with enough room."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
    with peer, sock:
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.send(b"x" * 65536)
        transport = SimpleNamespace(get_extra_info=lambda _: sock, get_write_buffer_size=lambda: 7)
        assert count_unread_bytes(transport) > 65536
        while count_unread_bytes(transport) > 7:
            assert peer.recv(65536)


@pytest.mark.acceptance("E7")
@pytest.mark.parametrize(
    "data", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: loc", POST + b"Content-Length: 99\r\n\r\n{"]
)
@pytest.mark.parametrize("first", [b"", PING], ids=["first", "second"])
def test_incomplete_request_times_out(runs, first, data):
    """Also the second one: uvicorn stops its keep-alive timer at the first byte."""
    limits = Limits(header_timeout=0.3, body_timeout=0.3)
    with serve_run(runs["decoder"], limits=limits) as client:
        client.server.config.timeout_keep_alive = 0.3 if first and not data else 100  # of new connections
        with client.connect() as sock:
            if first:
                assert_serves(sock, first)
            sock.sendall(data)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                answer = read_all(sock)
            assert not answer or b" 408 " in answer.split(b"\r\n")[0]
            client.wait_closed()


@pytest.mark.acceptance("E7", "R6")
@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"nonsense\r\n\r\n",
        PING + b"nonsense\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}   ",
        POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nhello\r\n",
        POST + b"Content-Length: -5\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\x00" * 20_000,
    ],
    ids=range(10),
)
def test_malformed_http_is_refused_in_json(checked_client, data):
    with checked_client.connect() as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        *answers, last = read_all(sock).split(b"HTTP/1.1 ")
    assert sum(answer.startswith(b"200 ") for answer in answers) == data.count(PING)
    if last:
        head, _, body = last.partition(b"\r\n\r\n")
        assert head[:3] in (b"400", b"415") and b"application/json" in head, head
        assert json.loads(body)["error"]["code"]


def test_pipelined_and_http_1_0_requests_are_answered(checked_client):
    body = json.dumps({"prompt": "dogs", "seed": 1, "max_tokens": 4}).encode()
    request = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    last = request.replace(b"Host:", b"Connection: close\r\nHost:")
    with checked_client.connect() as sock:
        sock.sendall(request + last)
        assert read_all(sock).count(b"HTTP/1.1 200") == 2
    with checked_client.connect() as sock:
        sock.sendall(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert b"200" in read_all(sock).split(b"\r\n")[0]
