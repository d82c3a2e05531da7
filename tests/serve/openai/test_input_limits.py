"""Tests of serve/openai/input_limits.py."""

from __future__ import annotations

import json
import threading

import pytest

from polyhead.serve.http.limits import Limits


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


@pytest.mark.acceptance("E3")
def test_texts_too_long_to_be_tokenized_are_refused_before_and_long_ones_do_not_hold_up_the_loop(
    runs, serving
):
    with serving(runs["decoder"], limits=Limits(max_chars=50_000)) as live:
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
