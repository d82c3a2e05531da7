"""Tests of serve/http/server.py."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest
from tests.cli.serve_helpers import serving
from tests.cli.serve_helpers import speaker as speaker

from polyhead.serve.http.server import raise_file_limit


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.append(limit))
    for current in ((1024, 4096), (1024, 1100), (1024, resource.RLIM_INFINITY), (2000, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, current=current: current)
        raise_file_limit(1500)
    assert limits == [(1500, 4096), (1100, 1100), (1500, resource.RLIM_INFINITY)]


@pytest.mark.acceptance("E9", "R10")
def test_told_to_stop_it_finishes_what_it_accepted_and_takes_nothing_new(speaker: Path) -> None:
    with serving(speaker) as service:
        assert service.said[0] == "speaker (decoder): /v1/completions, /v1/score, /v1/embeddings\n"
        streams = service.streams(3)
        os.kill(service.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while service.http.get("/health/ready").status_code == 200:
            assert time.monotonic() < deadline
        refused = service.http.post("/v1/completions", json={"prompt": "dogs"})
        assert (
            refused.status_code == 503
            and refused.json()["error"]["code"] == "shutting_down"
            and refused.headers["retry-after"]
        )
        assert service.http.get("/health/live").status_code == 200
        for stream in streams:
            events = stream.whole().split("\n\n")
            assert events[-2] == "data: [DONE]"
            assert json.loads(events[-3].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        code, log = service.end()
        assert code == 0 and "Traceback" not in log
        assert log.count("POST /v1/completions 200") == 3 and "dogs" not in log


@pytest.mark.acceptance("E9")
def test_what_does_not_end_within_the_grace_is_told_so(speaker: Path) -> None:
    with serving(speaker, "--shutdown-timeout", "0.3", "--max-tokens", "100000") as service:
        (stream,) = service.streams(1, max_tokens=100_000)
        service.process.send_signal(signal.SIGINT)
        events = stream.whole().split("\n\n")
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert service.end()[0] == 0
