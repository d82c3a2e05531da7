"""Clients that disconnect or come all at once, and a thread of the engine that hangs or dies."""

import gc
import json
import random
import select
import socket
import struct
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.serve.conftest import ENDLESS, build_run, get_error, serve_run, wait_until

from polyhead.serve.limits import Limits

PATH = "/v1/completions"


def die():
    raise SystemExit


@pytest.mark.acceptance("E1", "D7")
@pytest.mark.parametrize("data", [b"", b"\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=len)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_disconnect_frees_the_request_within_a_step(runs, phase, stream, data):
    """Also if the client had sent more than its request."""
    with serve_run(runs["decoder"], max_num_seqs=2, prefill_chunk=3) as client, client.hold_steps() as steps:
        thread, engine = client.service.engine_thread, client.service.engine.engine
        other_sockets = [client.send(ENDLESS) for _ in range(2)] if phase == "queue" else []
        if other_sockets:
            wait_until(lambda: len(thread._inbox) + len(engine.waiting_requests) + thread.num_running == 2)
            steps.allow(2)
            wait_until(lambda: thread.num_running == 2)
        prompt = "ein hund bellt . " * 3 if phase == "prefill" else "a dog barks ."
        body = ENDLESS | {"stream": stream, "seed": 9, "prompt": prompt, "truncate": True}
        sock = client.send(body)
        if phase == "queue":
            wait_until(lambda: thread._inbox or engine.waiting_requests)
            steps.allow()
            wait_until(lambda: len(engine.waiting_requests) == 1)
        elif phase == "prefill":
            steps.allow()
            wait_until(lambda: steps.num_steps == thread.num_running == 1)
            assert any(engine.running_members[0].pending), "three tokens a step"
        else:
            steps.allow(8)
            wait_until(lambda: steps.num_steps == 8)
            assert engine.running_members[0].request.state.rows[0]
        streams = [s for s in thread.streams if s.request.state.random_streams is not None]
        request = streams[-1].output.request
        if data:
            sock.sendall(data)
            client.wait_read()  # so that it comes by itself
        steps.wait_blocked()
        num_steps, num_commands = steps.num_steps, len(thread._inbox)
        sock.close()
        wait_until(lambda: len(thread._inbox) > num_commands)
        steps.allow()
        wait_until(lambda: request.finish_status is not None)
        assert request.finish_status.reason == "cancelled" and steps.num_steps - num_steps <= 1
        running = [member.request for member in engine.running_members]
        assert request not in [*engine.waiting_requests, *running]
        steps.allow(1000)
        for other in other_sockets:
            assert b"200 OK" in other.recv(65536)
            other.close()
        client.wait_idle()
    assert client.count_aborted("disconnect") == 1


@pytest.mark.acceptance("R9", "D7")
def test_disconnects_under_load_change_no_other_answer(client):
    rng = random.Random(1)
    prompt = ENDLESS["prompt"]
    expected = [client.run.generate([prompt], seed=seed, max_new_tokens=30)[0] for seed in range(4)]
    num_aborted = client.count_aborted("disconnect")

    def request(number):
        seed, disconnects, streams = number % 4, number % 2 == 0, number % 3 == 0
        body = ENDLESS | {"seed": seed}
        if disconnects:
            with client.send(body | {"stream": streams}):
                time.sleep(rng.random() * 0.05)
            return
        if streams:
            text = "".join(event["choices"][0]["text"] for event in client.stream(PATH, body))
        else:
            text = client.ask(PATH, body).json()["choices"][0]["text"]
        assert text == expected[seed]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(request, range(60)))
    client.wait_idle()
    wait_until(lambda: not client.server.app.active_tasks)
    wait_until(lambda: client.service.num_waiting == 0)
    assert client.count_aborted("disconnect") > num_aborted


@pytest.mark.acceptance("E2")
def test_reset_connections_are_freed(runs):
    with serve_run(runs["decoder"]) as client:
        references = weakref.WeakSet()
        for _ in range(5):
            with client.connect() as sock:
                sock.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
                assert client.server.server_state.connections
                references |= set(client.server.server_state.connections)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.wait_closed()
        wait_until(lambda: gc.collect() is not None and not references)


@pytest.mark.parametrize(("stream", "disconnects"), [(False, False), (False, True), (True, True)])
def test_requests_are_freed_without_gc(runs, gc_disabled, disconnects, stream):
    """Collections are rare in a service. The last update of a disconnected client is read by no task."""
    with serve_run(runs["decoder"]) as client, client.hold_steps() as steps:
        sock = client.send(ENDLESS | {"stream": stream})
        steps.allow(3)
        steps.wait_entered(4)
        thread = client.service.engine_thread
        references = weakref.WeakSet(client.server.server_state.connections)
        references |= {connection.transport._transport for connection in references} | set(thread.streams)
        references |= {s.output.request for s in thread.streams}
        assert len(references) == 4
        if disconnects:
            sock.close()
            wait_until(lambda: thread._inbox)
        steps.allow(1000)
        client.wait_idle()
        sock.close()
        client.wait_closed()
        wait_until(lambda: not references)


@pytest.mark.acceptance("E10")
def test_attention_of_translation_is_computed_under_load(runs):
    body, path = {"input": "a dog barks .", "max_tokens": 3, "beam_size": 2}, "/v1/translations"
    options = {"max_num_seqs": 2, "limits": Limits(max_queue=2)}
    with serve_run(runs["encoder-decoder"], **options) as client, client.hold_steps() as steps:
        first = client.send(body | {"return_attention": True}, path)
        steps.wait_entered()
        steps.allow()
        steps.wait_blocked()
        other_sockets = [client.send(body, path) for _ in range(2)]
        wait_until(lambda: client.service.num_waiting == 2)
        steps.allow(2)
        steps.wait_blocked()
        # complete, while two still wait: its attention is to be computed, or was before the step that is held
        wait_until(lambda: client.service.engine_thread._inbox or select.select([first], [], [], 0)[0])
        steps.allow(1000)
        head, _, answer = first.recv(65536).partition(b"\r\n\r\n")
        assert b"200 OK" in head
        assert json.loads(answer or first.recv(65536))["data"][0]["attention"]["weights"]
        for sock in (first, *other_sockets):
            sock.close()
        client.wait_idle()


@pytest.mark.acceptance("E4")
def test_readiness_reports_a_hanging_and_a_dead_thread(runs):
    with serve_run(runs["decoder"], limits=Limits(engine_timeout=0.6)) as client:
        ready, thread = "/health/ready", client.service.engine_thread
        assert client.ask("/health").json() == client.ask(ready).json() == {"status": "ready"}
        thread.slowest_step = 0.0
        with client.hold_steps():
            sock = client.send(ENDLESS)
            wait_until(lambda: client.ask(ready).status_code == 503)
            assert "has made no progress" in client.ask(ready).json()["error"]["message"]
            assert client.ask("/health/live").status_code == 200
        assert b"200 OK" in sock.recv(65536)
        sock.close()
        wait_until(lambda: client.ask("/health").status_code == 200)
        thread._post_command(die)
        thread.join(100)
        assert "has stopped" in get_error(client.ask(ready), 503)["message"]
        assert client.ask(PATH, ENDLESS).status_code == 503


@pytest.mark.acceptance("E4")
def test_dead_thread_fails_running_and_queued_requests(runs):
    with serve_run(runs["decoder"], limits=Limits(timeout=60)) as client, client.hold_steps() as steps:
        sockets = [client.send(ENDLESS)]
        steps.wait_entered()
        thread = client.service.engine_thread
        thread._post_command(die)
        sockets.append(client.send(ENDLESS))
        wait_until(lambda: len(thread._inbox) == 2)
        steps.allow()
        for sock in sockets:
            assert b"500 Internal" in sock.recv(65536)
            sock.close()


@pytest.mark.acceptance("C11", "R12")
def test_deterministic_mode_gives_equal_bits_under_load():
    bodies = [
        ENDLESS | {"prompt": prompt, "temperature": temperature, "seed": 3, "logprobs": 0, "max_tokens": 20}
        for prompt in ("a dog", "ein hund bellt")
        for temperature in (0, 1)
    ]
    with serve_run(build_run("decoder", d_model=32), deterministic=True, prefill_chunk=3) as client:
        expected = [client.ask(PATH, body).json()["choices"] for body in bodies]

        def complete(number):
            if number % 4 == 3:
                client.send(ENDLESS | {"stream": True}).close()
            return client.ask(PATH, bodies[number % len(bodies)]).json()["choices"]

        with ThreadPoolExecutor(12) as pool:
            for number, choices in enumerate(pool.map(complete, range(24))):
                assert choices == expected[number % len(bodies)]
        client.wait_idle()


def test_quiet_stream_sends_keepalive_comments(runs, monkeypatch):
    monkeypatch.setattr("polyhead.serve.openai.completions.KEEPALIVE_SECONDS", 0.05)
    with (
        serve_run(runs["decoder"]) as client,
        client.hold_steps() as steps,
        client.send(ENDLESS | {"stream": True}) as sock,
    ):
        answer = b""
        while b": still working\n\n" not in answer:
            answer += sock.recv(65536)
        steps.allow(1000)
        while b"[DONE]" not in answer:
            answer += sock.recv(65536)
