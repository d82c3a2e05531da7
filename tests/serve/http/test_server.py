import json
import logging
import resource
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.serve.conftest import ENDLESS, get_error, serve_run, wait_until

from polyhead.serve.http.server import raise_file_limit
from polyhead.serve.limits import Limits


def test_file_limit_is_raised_to_the_hard_limit(monkeypatch):
    limits = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.append(limit))
    for current in ((1024, 4096), (1024, 1100), (1024, resource.RLIM_INFINITY), (2000, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, current=current: current)
        raise_file_limit(1500)
    assert limits == [(1500, 4096), (1100, 1100), (1500, resource.RLIM_INFINITY)]


def read_stream(client):
    return client.ask("/v1/completions", ENDLESS | {"stream": True}).text.split("\n\n")


@pytest.mark.acceptance("E9", "R10")
def test_first_signal_finishes_accepted_requests_only(runs, caplog):
    caplog.set_level(logging.INFO, "polyhead.serve")
    with serve_run(runs["decoder"]) as client, ThreadPoolExecutor() as pool:
        with client.hold_steps() as steps:
            streams = [pool.submit(read_stream, client) for _ in range(3)]
            wait_until(lambda: len(client.server.app.active_tasks) == 3)
            client.server.handle_exit(signal.SIGTERM, None)
            assert client.ask("/health/ready").status_code == 503
            answer = client.ask("/v1/completions", {"prompt": "dogs"})
            assert get_error(answer, 503)["code"] == "shutting_down" and answer.headers["retry-after"]
            assert client.ask("/health/live").status_code == 200
            steps.allow(1000)
            for stream in streams:
                *_, last, done, _ = stream.result()
                assert done == "data: [DONE]"
                assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"]
        client.thread.join()
    assert caplog.text.count("POST /v1/completions 200") == 3 and "barks" not in caplog.text


@pytest.mark.acceptance("E9")
@pytest.mark.parametrize("code", ["shutting_down", "deadline"])
def test_request_beyond_its_time_limit_is_aborted(runs, code):
    limits = Limits(shutdown_timeout=0.2) if code == "shutting_down" else Limits(timeout=0.2)
    with serve_run(runs["decoder"], limits=limits) as client, ThreadPoolExecutor() as pool:
        with client.hold_steps() as steps:
            stream = pool.submit(read_stream, client)
            wait_until(lambda: client.service.engine_thread.streams)
            steps.allow(2)
            if code == "shutting_down":
                client.server.handle_exit(signal.SIGINT, None)
            error = json.loads(stream.result()[-2].removeprefix("data: "))["error"]
            assert error["code"] == code
        if code == "shutting_down":
            client.thread.join()
        else:
            client.wait_idle()
            assert client.count_aborted("deadline") == 1
