"""Clients that leave, stop reading or come all at once; a model's thread that hangs or dies; an engine that
fails.
"""

from __future__ import annotations

import gc
import json
import random
import socket
import struct
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from polyhead.serve.http.limits import Limits

BODY = {"prompt": "a dog barks .", "max_tokens": 30, "seed": 1, "stop": ["never said"]}


def send(live, body, path="/v1/completions"):
    """A request on a socket of its own, whose answer nobody has read yet."""
    content = json.dumps(body).encode()
    sock = live.raw()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        f"{len(content)}\r\n\r\n"
    )
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
    """That is rare in a service, and goes through what lives as well. The last news of who has left is read
    by nobody.
    """
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
            assert "has made no progress" in live.ask("/health/ready").json()["error"]["message"]
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
        assert answer.status_code == 503 and "has stopped" in answer.json()["error"]["message"]
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
