"""Clients that leave, stop reading or come all at once; a model's thread that hangs or dies; an engine that fails."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import socket
import struct
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from polyhead.serve import engine_thread
from polyhead.serve.http import app
from polyhead.serve.http.auth import ApiKeys
from polyhead.serve.http.connection_limits import count_unread_bytes
from polyhead.serve.http.limits import Limits

BODY = {"prompt": "a dog barks .", "max_tokens": 30, "seed": 1, "stop": ["never said"]}


def send(live, body, path="/v1/completions"):
    """A request on a socket of its own, whose answer nobody has read yet."""
    content = json.dumps(body).encode()
    sock = live.raw()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    sock.sendall(head.encode() + content)
    return sock


@pytest.mark.acceptance("E1", "D7")
@pytest.mark.parametrize("more", [b"", b"\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=len)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["waits", "reads", "says"])
def test_who_leaves_frees_his_place_within_a_step(runs, serving, slowly, phase, stream, more):
    """Also who had sent more than its request by then."""
    with serving(runs["decoder"], max_num_seqs=2, prefill_chunk=3) as live, slowly(live) as engine:
        driver, inner = live.service.engine_thread, live.service.engine.engine
        others = [send(live, BODY) for _ in range(2)] if phase == "waits" else []
        if others:
            live.until(
                lambda: len(driver._inbox) + len(inner.waiting_requests) + driver.num_running == 2,
                "both are there before a step is made",
            )
            engine.let(2)
            live.until(lambda: driver.num_running == 2, "all rows are taken")
        prompt = "a dog barks ." if phase != "reads" else "ein hund bellt . " * 3
        gone = send(live, BODY | {"stream": stream, "seed": 9, "prompt": prompt, "truncate": True})
        if phase == "waits":
            live.until(lambda: len(driver._inbox) + len(inner.waiting_requests) > 0, "it waits")
            engine.let()
            live.until(lambda: len(inner.waiting_requests) == 1, "it waits")
        elif phase == "reads":
            engine.let()
            live.until(
                lambda: engine.steps == 1 and driver.num_running == 1,
                "it reads its prompt, three tokens a step",
            )
            assert inner.running_members[0].num_pending
        else:
            engine.let(8)
            live.until(lambda: engine.steps == 8, "it says something")
            assert inner.running_members[0].request.state.rows[0]
        (talk,) = [talk for talk in driver.streams if talk.request.state.random_streams is not None][-1:]
        request = talk.output.request
        if more:
            gone.sendall(more)
            time.sleep(0.1)  # so that it comes by itself
        engine.still()
        done, news = engine.steps, len(driver._inbox)
        gone.close()
        live.until(lambda: len(driver._inbox) > news, "the service has noticed")
        engine.let()
        live.until(lambda: request.finish_status is not None, "it ends")
        assert request.finish_status.reason == "cancelled" and engine.steps - done <= 1
        assert request not in inner.waiting_requests and request not in [
            member.request for member in inner.running_members
        ]
        engine.let(1000)
        for sock in others:
            assert b"200 OK" in sock.recv(65536)
            sock.close()
        live.idle()
    assert live.service.metrics.aborted_requests.labels("disconnect")._value.get() == 1


@pytest.mark.acceptance("R9", "D7")
def test_after_a_storm_of_those_who_leave_everything_is_free_and_the_others_were_served(speaker):
    chance = random.Random(1)
    wanted = {
        seed: speaker.run.generate([BODY["prompt"]], seed=seed, max_new_tokens=30)[0] for seed in range(4)
    }
    aborted = speaker.service.metrics.aborted_requests.labels("disconnect")._value.get()

    def one(number):
        seed, leaves, stream = number % 4, number % 2 == 0, number % 3 == 0
        sock = send(speaker, BODY | {"seed": seed, "stream": stream})
        if leaves:
            time.sleep(chance.random() * 0.05)
            sock.close()
            return None
        answer = b""
        while b"\r\n0\r\n\r\n" not in answer and not (
            b"\r\n\r\n" in answer and not stream and answer.endswith(b"}")
        ):
            answer += sock.recv(65536)
        sock.close()
        if stream:
            pieces = [json.loads(line[6:]) for line in answer.split(b"\n") if line.startswith(b"data: {")]
            return seed, "".join(piece["choices"][0]["text"] for piece in pieces)
        return seed, json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"]

    with ThreadPoolExecutor(16) as pool:
        for found in pool.map(one, range(120)):
            assert found is None or found[1] == wanted[found[0]]
    speaker.idle()
    speaker.until(lambda: not speaker.server.app.active_tasks, "every request has ended")
    speaker.until(lambda: speaker.service.num_waiting == 0, "nobody waits")
    assert speaker.service.metrics.aborted_requests.labels("disconnect")._value.get() > aborted


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
    limits = Limits(write_timeout=4.0 if said else 0.3, max_tokens=100_000, body=2**25)
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
    with serving(runs["decoder"], limits=Limits(write_timeout=0.3, max_tokens=100_000, body=2**25)) as live:
        sock = little_buffer(live, LONG | {"max_tokens": 150})
        connections = live.server.server_state.connections
        live.until(lambda: len(connections) == 1, "it is there")
        live.until(lambda: not connections, "it was cut off")
        sock.close()


@pytest.mark.acceptance("E2")
def test_who_reads_slowly_gets_all(runs, serving, monkeypatch):
    monkeypatch.setattr("polyhead.serve.http.connection_limits.SEND_BUFFER_BYTES", 4096)
    with serving(runs["decoder"], limits=Limits(write_timeout=1.0, max_tokens=100_000, body=2**25)) as live:
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
    """A client's reading shows in the system before it shows in ours, for that refills from a part that is free."""
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
                    f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{header}Content-Length: {whole}\r\n\r\n".encode()
                )
                sock.sendall(b" " * whole)
                assert sock.recv(2**16).startswith(b"HTTP/1.1 401 ")
        live.until(lambda: not live.server.server_state.connections, "nothing is left")


def test_who_sends_on_behind_a_last_answer_is_cut_off(runs, serving):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 9000\r\n\r\n"
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


@pytest.mark.acceptance("E2")
def test_who_resets_a_connection_leaves_nothing_of_it(runs, serving):
    with serving(runs["decoder"]) as live:
        known = weakref.WeakSet()
        for _ in range(5):
            sock = live.raw()
            sock.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert live.server.server_state.connections
            known |= set(live.server.server_state.connections)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        live.until(lambda: not live.server.server_state.connections, "they are gone")
        live.until(lambda: gc.collect() is not None and not known, "nothing knows of them")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
def test_nothing_of_a_request_waits_for_the_search_for_garbage(
    runs, serving, slowly, unsearched, leaves, stream
):
    """That is rare in a service, and goes through what lives as well. The last news of who has left is read by nobody."""
    with serving(runs["decoder"]) as live, slowly(live) as engine:
        sock = send(live, BODY | {"stream": stream})
        engine.let(3)
        live.until(lambda: engine.entered == 4, "three tokens are there, and a step is under way")
        driver, known = live.service.engine_thread, weakref.WeakSet(live.server.server_state.connections)
        known |= {connection.transport._transport for connection in known} | set(driver.streams)
        known |= {talk.output.request for talk in driver.streams}
        assert len(known) == 4
        if leaves:
            sock.close()
            live.until(lambda: driver._inbox, "the service has noticed")
        engine.let(1000)
        live.idle()
        sock.close()
        live.until(lambda: not live.server.server_state.connections, "it is gone")
        live.until(lambda: not known, "nothing knows of them")


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


@pytest.mark.acceptance("R10")
def test_an_answer_that_is_still_being_read_is_not_cut_by_the_end(runs, serving, monkeypatch):
    monkeypatch.setattr("polyhead.serve.http.connection_limits.SEND_BUFFER_BYTES", 4096)
    with serving(runs["decoder"], limits=Limits(max_tokens=100_000, body=2**25)) as live:
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
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
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


@pytest.mark.acceptance("E10")
def test_what_is_too_much_is_refused_at_once_and_what_was_accepted_is_served(runs, serving, slowly):
    with serving(runs["decoder"], max_num_seqs=2, limits=Limits(max_queue=4)) as live:
        with slowly(live) as engine:
            accepted = [send(live, BODY | {"seed": i}) for i in range(2)]
            live.until(
                lambda: live.service.num_waiting + len(live.service.engine_thread.streams) >= 2, "both are in"
            )
            for _ in range(20):  # the second may come while the first is alone in a step
                if live.service.engine_thread.num_running < 2:
                    engine.let()
                    time.sleep(0.2)
            live.until(lambda: live.service.engine_thread.num_running == 2, "both run")
            accepted += [send(live, BODY | {"seed": i}) for i in range(2, 6)]
            engine.let()
            live.until(lambda: live.service.num_waiting == 4, "four wait")
            for _ in range(10):
                answer = live.ask("/v1/completions", BODY)
                assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
                assert answer.json()["error"]["type"] == "rate_limit_error"
            with live.raw() as sock:  # nobody waits for a body that will not be looked at
                head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                sock.sendall(f"{head}1000\r\n\r\n".encode())
                assert b" 429 " in sock.recv(65536).split(b"\r\n")[0]
            with live.raw() as sock:  # and the connection is still good for the next request
                body = json.dumps(BODY)
                sock.sendall(f"{head}{len(body)}\r\n\r\n{body}".encode() * 2)
                answer = b""
                while answer.count(b"overloaded") < 2 and (piece := sock.recv(65536)):
                    answer += piece
                assert answer.count(b"HTTP/1.1 429") == 2
            assert live.ask("/tokenize", {"prompt": "dogs"}).status_code == 200
            assert live.service.num_waiting == 4
        for seed, sock in enumerate(accepted):
            _, _, body = sock.recv(65536).partition(b"\r\n\r\n")
            body = body or sock.recv(65536)
            (wanted,) = live.run.generate([BODY["prompt"]], seed=seed, max_new_tokens=30)
            assert json.loads(body)["choices"][0]["text"] == wanted
            sock.close()
        assert live.ask("/v1/completions", BODY).status_code == 200


@pytest.mark.acceptance("E10")
def test_texts_of_one_request_count_each_and_those_who_left_count_nothing(runs, serving, slowly):
    with serving(runs["decoder"], max_num_seqs=8, limits=Limits(max_queue=8)) as live, slowly(live) as engine:
        running = send(live, BODY | {"prompt": ["dogs"] * 8, "max_tokens": 40})
        live.until(lambda: engine.entered == 1, "all eight are there")
        engine.let()
        engine.still()
        assert live.service.engine_thread.num_running == 8 and live.service.num_waiting == 0
        many = BODY | {"prompt": ["dogs"] * 4, "max_tokens": 2}
        accepted = [send(live, many)]
        live.until(lambda: live.service.num_waiting == 4, "four wait")
        accepted.append(send(live, many))
        live.until(lambda: live.service.num_waiting == 8, "eight wait")
        assert b"polyhead_requests_waiting 8.0" in live.ask("/metrics").content
        refused = live.ask("/v1/completions", many)
        assert refused.status_code == 429 and "8 texts wait already" in refused.text
        running.close()
        live.until(lambda: len(live.service.engine_thread._inbox) == 2 + 8, "the service has noticed")
        assert live.service.num_waiting == 8
        engine.let(1000)
        for sock in accepted:
            assert b"200 OK" in sock.recv(65536)
            sock.close()
        live.idle()


@pytest.mark.acceptance("E10")
def test_a_translation_that_was_let_in_tells_where_it_looked_however_many_wait(runs, serving, slowly):
    body = {"input": "a dog barks .", "max_tokens": 3, "beam_size": 2}
    with (
        serving(runs["encoder-decoder"], max_num_seqs=2, limits=Limits(max_queue=2)) as live,
        slowly(live) as engine,
    ):
        first = send(live, body | {"return_attention": True}, "/v1/translations")
        live.until(lambda: engine.entered == 1, "it is made")
        engine.let()
        engine.still()
        others = [send(live, body, "/v1/translations") for _ in range(2)]
        live.until(lambda: live.service.num_waiting == 2, "two wait")
        engine.let(2)
        engine.still()
        time.sleep(0.2)  # it is made, and two wait still
        engine.let(1000)
        told, _, answer = first.recv(65536).partition(b"\r\n\r\n")
        assert b"200 OK" in told
        assert json.loads(answer or first.recv(65536))["data"][0]["attention"]["weights"]
        for sock in (first, *others):
            sock.close()
        live.idle()


@pytest.mark.acceptance("E4")
def test_readiness_tells_of_a_thread_that_hangs_and_of_one_that_died(runs, serving, slowly):
    with serving(runs["decoder"], limits=Limits(engine_timeout=0.6)) as live:
        assert live.ask("/health").json() == live.ask("/health/ready").json() == {"status": "ready"}
        live.service.engine_thread.slowest_step = 0.0
        with slowly(live):
            sock = send(live, BODY)
            live.until(lambda: live.ask("/health/ready").status_code == 503, "a step hangs")
            assert "has not moved" in live.ask("/health/ready").json()["error"]["message"]
            assert live.ask("/health/live").status_code == 200
        assert b"200 OK" in sock.recv(65536)
        sock.close()
        live.until(lambda: live.ask("/health").status_code == 200, "it goes on")

        def dies():
            raise SystemExit

        waits = send(live, BODY | {"max_tokens": 1})
        assert b"200 OK" in waits.recv(65536)
        live.service.engine_thread._post_command(dies)
        live.service.engine_thread.join(10)
        answer = live.ask("/health/ready")
        assert answer.status_code == 503 and "has ended" in answer.json()["error"]["message"]
        assert live.ask("/v1/completions", BODY).status_code == 503


@pytest.mark.acceptance("E4")
def test_when_the_thread_dies_those_who_had_not_begun_are_told_at_once(runs, serving, slowly):
    def dies():
        raise SystemExit

    with serving(runs["decoder"], limits=Limits(timeout=60)) as live, slowly(live) as engine:
        socks = [send(live, BODY)]
        live.until(lambda: engine.entered == 1, "it runs")
        live.service.engine_thread._post_command(dies)
        socks.append(send(live, BODY))
        live.until(lambda: len(live.service.engine_thread._inbox) == 2, "it is in the inbox")
        engine.let()
        for sock in socks:
            sock.settimeout(20)
            assert b"500 Internal" in sock.recv(65536)
            sock.close()


@pytest.mark.acceptance("E5")
def test_a_step_that_fails_ends_its_requests_and_not_the_service(runs, serving):
    with serving(runs["decoder"]) as live:
        inner = live.service.engine.engine
        admit, calls = inner._schedule, []

        def broken():
            calls.append(1)
            if len(calls) % 4 == 0:
                raise MemoryError("no room at all")
            admit()

        inner._schedule = broken
        assert live.ask("/v1/completions", BODY).status_code == 500
        events = live.ask("/v1/completions", BODY | {"stream": True})
        assert events.status_code == 200
        assert "[DONE]" not in events.text, "a stream that failed does not end as one that is whole"
        *said, failure = [json.loads(line.removeprefix("data: ")) for line in events.text.split("\n\n")[:-1]]
        assert failure["error"]["code"] == "internal_error"
        del inner._schedule
        whole = live.ask("/v1/completions", BODY)
        assert whole.status_code == 200
        text = "".join(event["choices"][0]["text"] for event in said)
        assert text and whole.json()["choices"][0]["text"].startswith(text), "what came before is not lost"
        live.idle()


def test_a_request_that_takes_too_long_ends_with_the_deadline(runs, serving, slowly):
    with serving(runs["decoder"], limits=Limits(timeout=0.2)) as live:
        with slowly(live) as engine:
            assert live.ask("/v1/completions", BODY).json()["error"]["code"] == "deadline"
            engine.let(2)
            live.idle()
        assert live.service.metrics.aborted_requests.labels("deadline")._value.get() == 1


@pytest.mark.acceptance("C11", "R12")
def test_in_deterministic_mode_load_changes_no_byte(maker, serving):
    run = maker("decoder", d_model=32)
    asked = [
        BODY | {"prompt": prompt, "temperature": t, "seed": 3, "logprobs": 0}
        for prompt in ("a dog", "ein hund bellt")
        for t in (0, 1)
    ]
    with serving(run, deterministic=True, prefill_chunk=3) as live:
        alone = [live.ask("/v1/completions", body).json()["choices"] for body in asked]

        def one(number):
            if number % 4 == 3:
                send(live, BODY | {"stream": True}).close()
            return live.ask("/v1/completions", asked[number % len(asked)]).json()["choices"]

        with ThreadPoolExecutor(12) as pool:
            for number, found in enumerate(pool.map(one, range(32))):
                assert found == alone[number % len(asked)]
        live.idle()


@pytest.mark.acceptance("E3")
def test_texts_too_long_to_be_tokenized_are_refused_before_and_long_ones_do_not_hold_up_the_loop(
    runs, serving
):
    with serving(runs["decoder"], limits=Limits(chars=50_000)) as live:
        encode, entered, gate = live.service.engine.tokenizer.encode, threading.Event(), threading.Event()

        def slow(texts):
            entered.set()
            gate.wait(30)
            return encode(texts)

        live.service.engine.tokenizer.encode = slow
        sock = send(live, {"prompt": "a" * 40_000, "truncate": True, "max_tokens": 1})
        assert entered.wait(30)
        assert live.ask("/health").status_code == 200, "while a text is being read"
        assert (
            live.ask("/v1/completions", {"prompt": "a" * 50_001}).json()["error"]["code"] == "text_too_long"
        )
        gate.set()
        assert b"200 OK" in sock.recv(65536)
        sock.close()
        del live.service.engine.tokenizer.encode


@pytest.mark.acceptance("F2")
def test_the_process_listens_on_one_port_and_no_more(speaker):
    import psutil

    own = [c for c in psutil.Process(os.getpid()).net_connections() if c.status == psutil.CONN_LISTEN]
    ports = [c.laddr.port for c in own]
    assert ports.count(speaker.sock.getsockname()[1]) == 1
    assert all(c.laddr.ip == "127.0.0.1" for c in own)


def test_a_quiet_stream_says_that_it_lives(runs, serving, slowly, monkeypatch):
    monkeypatch.setattr("polyhead.serve.openai.completions.KEEPALIVE_SECONDS", 0.05)
    with serving(runs["decoder"]) as live, slowly(live) as engine:
        sock = send(live, BODY | {"stream": True})
        live.until(lambda: bool(live.service.engine_thread.streams), "it is there")
        answer = b""
        while b": still working\n\n" not in answer:
            answer += sock.recv(65536)
        engine.let(1000)
        while b"[DONE]" not in answer:
            answer += sock.recv(65536)
        sock.close()


def test_small_pieces_are_sent_at_once(speaker):
    """Else the second piece of an answer waits 40 ms for the client's acknowledgement of the first."""
    speaker.ask("/health")
    for connection in speaker.server.server_state.connections:
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert speaker.server.server_state.connections
