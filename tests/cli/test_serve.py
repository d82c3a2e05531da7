"""Tests of cli/serve.py: what it starts, what it refuses, and how the process ends."""

import logging
import os
import signal
import sys
from contextlib import contextmanager

import psutil
import pytest
from tests.cli.serve_helpers import endless_run as endless_run
from tests.cli.serve_helpers import serve_in_thread, serve_process

from polyhead import Choice
from polyhead.core.extras import install_command
from polyhead.run.load import load
from polyhead.run.run import Run
from polyhead.serve.http import server


@pytest.fixture
def start(cli, monkeypatch):
    """A function that runs `serve` up to the start of the server, which then runs in a thread."""
    services, loggers = [], [logging.getLogger(name) for name in ("polyhead.serve", "uvicorn")]
    levels = [logger.level for logger in loggers]

    def run_server(app, sock, on_ready):
        services.append(app.service)
        on_ready()
        sock.close()

    monkeypatch.setattr(server, "run_server", run_server)

    @contextmanager
    def start_service(*arguments):
        cli("serve", *arguments, "--port", 0)
        with serve_in_thread(services.pop()) as client:
            yield client

    yield start_service
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.mark.acceptance("E9")
def test_second_sigterm_stops_immediately_without_child_processes(endless_run):
    with serve_process(endless_run, "--max-tokens", "100000") as service:
        (stream,) = service.streams(1, max_tokens=100_000)
        children = psutil.Process(service.process.pid).children(recursive=True)
        os.kill(service.process.pid, signal.SIGTERM)
        while service.http.get("/health/ready").status_code == 200:
            pass  # each request takes a while
        os.kill(service.process.pid, signal.SIGTERM)
        assert service.end()[0] == 128 + signal.SIGTERM
        assert "[DONE]" not in stream.read_all()
        assert not [child for child in children if child.is_running()]


@pytest.mark.acceptance("E9", "R10")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sigterm_loses_no_accepted_request(endless_run):
    for n_pieces in range(0, 1000, 100):
        with serve_process(endless_run) as service:
            streams = service.streams(4, max_tokens=30 + n_pieces // 5)
            while len(streams[0].text) < n_pieces and streams[0].thread.is_alive():
                streams[0].thread.join(0.001)
            os.kill(service.process.pid, signal.SIGTERM)
            assert all(stream.read_all().endswith("data: [DONE]\n\n") for stream in streams)
            assert service.end()[0] == 0


def test_speculative_decoding_does_not_change_text(endless_run, tmp_path, start, monkeypatch):
    """Whether the run or the option sets it."""
    run = load(endless_run)
    settings = run.generation.model_copy(update={"speculative": Choice("lookup")})
    Run(run.model, run.tokenizer, settings).save(tmp_path / "drafting")
    choices = []
    propose = Run._proposer
    monkeypatch.setattr(Run, "_proposer", lambda *a: (choices.append(a[1]), propose(*a))[1])
    body = {"prompt": "two dogs bark . two", "max_tokens": 20, "seed": 3}
    (expected,) = run.generate([str(body["prompt"])], max_new_tokens=20, seed=3)
    for arguments in ((tmp_path / "drafting",), (endless_run, "--speculative", "lookup,tokens=3")):
        choices.clear()
        with start(*arguments) as client:
            assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == expected
        assert [choice.name for choice in choices if choice] == ["lookup"]


def test_api_keys_come_from_file_and_environment(endless_run, tmp_path, start, cli, monkeypatch):
    keys = ("first-key-of-this-service", "other-key-of-this-service")
    (tmp_path / "keys").write_text(f"{keys[0]}\n")
    monkeypatch.setenv("POLYHEAD_API_KEY", keys[1])
    with start(endless_run, "--api-key-file", tmp_path / "keys", "--name", "mine") as client:
        assert client.get("/v1/models").status_code == 401
        for key in keys:
            response = client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert response.json()["data"][0]["id"] == "mine"
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.error("serve", endless_run) == f"this needs uvicorn: {install_command('serve')}"
