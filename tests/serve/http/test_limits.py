"""Tests of serve/http/limits.py."""

from __future__ import annotations

import json
import time

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
                head = (
                    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                    "application/json\r\nContent-Length: "
                )
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
        assert refused.status_code == 429 and "8 texts are already queued" in refused.text
        running.close()
        live.until(lambda: len(live.service.engine_thread._inbox) == 2 + 8, "the service has noticed")
        assert live.service.num_waiting == 8
        engine.let(1000)
        for sock in accepted:
            assert b"200 OK" in sock.recv(65536)
            sock.close()
        live.idle()
