"""The service as a process of its own: how it starts, what it refuses, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.cli.serve_helpers import serving
from tests.cli.serve_helpers import speaker as speaker

from polyhead import Choice
from polyhead.cli import main
from polyhead.core.extras import install_command
from polyhead.run.load import load
from polyhead.run.run import Run


@pytest.mark.acceptance("E9")
def test_told_twice_it_stops_at_once_and_leaves_no_child(speaker: Path) -> None:
    with serving(speaker, "--max-tokens", "100000") as service:
        (stream,) = service.streams(1, max_tokens=100_000)
        children = psutil.Process(service.process.pid).children(recursive=True)
        os.kill(service.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while service.http.get("/health/ready").status_code == 200:
            assert time.monotonic() < deadline
        os.kill(service.process.pid, signal.SIGTERM)
        assert service.end()[0] == 128 + signal.SIGTERM
        assert "[DONE]" not in stream.whole()
        assert not [child for child in children if child.is_running()]


@pytest.mark.acceptance("E9", "R10")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_told_to_stop_at_any_moment_no_accepted_request_is_lost(speaker: Path) -> None:
    for delay in range(10):
        with serving(speaker) as service:
            streams = service.streams(4, max_tokens=30 + 20 * delay)
            time.sleep(0.03 * delay)
            os.kill(service.process.pid, signal.SIGTERM)
            assert all(stream.whole().endswith("data: [DONE]\n\n") for stream in streams)
            assert service.end()[0] == 0


def test_speculative_decoding_of_the_run_or_by_option_changes_no_text(speaker: Path, tmp_path: Path) -> None:
    run = load(speaker)
    settings = run.generation.model_copy(update={"speculative": Choice("lookup")})
    Run(run.model, run.tokenizer, settings).save(tmp_path / "drafting")
    body = {"prompt": "two dogs bark . two", "max_tokens": 20, "seed": 3}
    (wanted,) = run.generate([str(body["prompt"])], max_new_tokens=20, seed=3)
    for arguments in ((tmp_path / "drafting",), (speaker, "--speculative", "lookup,tokens=3")):
        with serving(*arguments) as service:
            answer = service.http.post("/v1/completions", json=body).json()
            assert answer["choices"][0]["text"] == wanted
            service.process.send_signal(signal.SIGTERM)
            code, told = service.end()
            assert code == 0 and "speculative" not in told


def test_keys_come_from_a_file_or_the_environment(
    speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("first-key-of-this-service\n")
    monkeypatch.setenv("POLYHEAD_API_KEY", "other-key-of-this-service")
    with serving(speaker, "--api-key-file", str(tmp_path / "keys"), "--name", "mine") as service:
        assert service.http.get("/v1/models").status_code == 401
        for key in ("first-key-of-this-service", "other-key-of-this-service"):
            answer = service.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert answer.json()["data"][0]["id"] == "mine"


def test_what_cannot_be_served_is_told_in_a_line(
    speaker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, said in (
            ([str(speaker), "--port", port], f"port {port} is in use"),
            (
                [str(speaker), "--host", "0.0.0.0"],
                "0.0.0.0 is reachable from other machines: give --api-key-file",
            ),
            (
                [str(speaker), "--host", "no.such.host.invalid", "--api-key-file", str(tmp_path / "none")],
                "No such file",
            ),
            ([str(tmp_path / "nothing"), "--port", "0"], "no run directory"),
            (
                [str(speaker), "--port", "0", "--shutdown-timeout", "0"],
                "shutdown_timeout: 0.0 is out of range: should be greater than 0",
            ),
            ([str(speaker), "--port", "0", "--cache", "pagd"], "did you mean 'paged'?"),
        ):
            assert main(["serve", *arguments]) == 2
            err = capsys.readouterr().err
            assert said in err and err.count("\n") == 1, err


@pytest.mark.parametrize("module", ["uvicorn", "starlette"])
def test_without_its_extra_it_says_what_to_install(speaker: Path, module: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None; from polyhead.cli import main; "
        f"sys.exit(main(['serve', {str(speaker)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        2,
        f"polyhead: this needs {module}: {install_command('serve')}\n",
    )
