"""Services behind routers, as docs/serving.md configures them; skipped where a router is missing."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest
from tests.cli.serve_helpers import LONG, Stream, serve_process
from tests.cli.serve_helpers import endless_run as endless_run

PAGE = (Path(__file__).parents[2] / "docs/serving.md").read_text()
KEY = "a-key-of-these-services"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def with_ports(text, ports):
    """A command or a file of the page, whose ports are 8100 of the router, 8101 and 8102."""
    for i, port in enumerate(ports):
        text = text.replace(str(8100 + i), str(port))
    return text


def router_command(router, ports, directory):
    if router == "nginx":
        (server,) = re.findall(r"```nginx\n(.*?)```", PAGE, re.S)
        (directory / "polyhead.conf").write_text(with_ports(server, ports))
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {directory};\n" for kind in kinds)
        (directory / "nginx.conf").write_text(
            f"daemon off;\npid {directory}/pid;\nerror_log stderr;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{temporary}include {directory}/polyhead.conf;\n}}\n"
        )
        return ["nginx", "-p", str(directory), "-c", str(directory / "nginx.conf"), "-e", "stderr"]
    (line,) = re.findall(r"^vllm-router .*$", PAGE, re.M)
    program, *options = shlex.split(with_ports(line, ports))
    assert program == "vllm-router"
    start = [program] if router == program else [sys.executable, "-m", "sglang_router.launch_router"]
    return [*start, *options, "--prometheus-port", str(free_port())]


@pytest.fixture
def router(request):
    """A router by name, if it is installed."""
    name = request.param
    missing = find_spec("sglang_router") is None if name == "sglang-router" else not shutil.which(name)
    if missing:
        pytest.skip(f"{name} is not installed")
    return name


@contextmanager
def routing(router, services, directory, *options):
    """A client of the router, when the router is ready."""
    ports = [free_port(), *(int(service.url.rsplit(":", 1)[1]) for service in services)]
    command = [*router_command(router, ports, directory), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{ports[0]}", timeout=200, trust_env=False) as client:
            while not is_ready(client):
                assert process.poll() is None, f"{router} does not start"
                time.sleep(0.02)
            yield client
    finally:
        process.terminate()
        process.wait(30)


def is_ready(client):
    try:
        return client.get("/health").status_code == 200
    except httpx2.TransportError:
        return False


def make_body(i, **changes):
    return {"model": "endless", "prompt": "dogs bark . " * (i + 1), "max_tokens": 8, "seed": i} | changes


def response_text(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def read_stream(stream):
    """The text of a stream, and whether it came to its end."""
    events = re.findall(r"^data: (\{.*)$", stream.read_all(), re.M)
    parts = [choice["text"] for event in events for choice in json.loads(event)["choices"]]
    return "".join(parts), stream.read_all().endswith("data: [DONE]\n\n")


def complete_all(client):
    """The texts of four completions, requested twice."""
    answers = [client.post("/v1/completions", json=make_body(i % 4)) for i in range(8)]
    return [response_text(answer) for answer in answers]


def count_responses(service):
    pattern = r'requests_total\{code="200",route="/v1/completions"\} (\S+)'
    return sum(int(float(n)) for n in re.findall(pattern, service.http.get("/metrics").text))


@pytest.mark.parametrize("router", ["vllm-router", "nginx"], indirect=True)
def test_other_worker_completes_when_one_stops(router, endless_run, tmp_path):
    with (
        serve_process(endless_run) as one,
        serve_process(endless_run) as other,
        serve_process(endless_run) as single,
    ):
        expected, body = complete_all(single.http), {**LONG, "stream": False}
        long = response_text(single.http.post("/v1/completions", json=body))
        with routing(router, [one, other], tmp_path) as client:
            url = str(client.base_url).rstrip("/")
            assert complete_all(client) == expected
            assert count_responses(one) and count_responses(other)
            assert client.post("/v1/score", json={"input": "dogs"}).status_code == 200
            streams = [Stream(url, LONG) for _ in range(6)]
            with ThreadPoolExecutor(4) as pool:
                pending = [pool.submit(client.post, "/v1/completions", json=body) for _ in range(4)]
                while one.http.get("/health").status_code != 200:
                    pass  # a request later than the pending ones
                one.process.kill()
                one.process.wait()
                ends = [read_stream(stream) for stream in streams]
                assert {end for text, end in ends} == {True, False}, "each worker had some of them"
                assert all(text == long if end else long.startswith(text) for text, end in ends)
                assert [response_text(answer.result()) for answer in pending] == [long] * 4
            assert complete_all(client) == expected
        with routing(router, [other, single], tmp_path) as client:
            url = str(client.base_url).rstrip("/")
            streams = [Stream(url, LONG) for _ in range(6)]
            other.process.send_signal(signal.SIGTERM)
            assert complete_all(client) == expected
            assert [read_stream(stream) for stream in streams] == [(long, True)] * 6
            assert other.end()[0] == 0


@pytest.mark.parametrize("router", ["vllm-router", "sglang-router", "nginx"], indirect=True)
def test_api_keys_pass_through_the_router(router, endless_run, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYHEAD_API_KEY", KEY)
    with serve_process(endless_run) as service:
        del os.environ["POLYHEAD_API_KEY"]
        options = [] if router == "nginx" else ["--api-key", KEY]
        with routing(router, [service, service], tmp_path, *options) as client:
            headers = {"authorization": f"Bearer {KEY}"}
            response_text(client.post("/v1/completions", json=make_body(0), headers=headers))
            if router == "sglang-router":  # it has the name from /server_info
                workers = client.get("/workers", headers=headers).json()["workers"]
                assert {worker["model_id"] for worker in workers} == {"endless"}
            wrong = {"authorization": "Bearer no-key-of-these-services"}
            assert client.post("/v1/completions", json=make_body(0), headers=wrong).status_code == 401
            assert client.post("/v1/completions", json=make_body(0)).status_code == 401


@pytest.mark.parametrize("router", ["vllm-router", "nginx"], indirect=True)
def test_restarted_worker_gets_requests_again(router, endless_run, tmp_path):
    options = ["--health-check-interval-secs", "1"] if router == "vllm-router" else []
    with (
        serve_process(endless_run) as one,
        serve_process(endless_run) as other,
        routing(router, [one, other], tmp_path, *options) as client,
    ):
        one.process.kill()
        one.process.wait()
        for i in range(8):
            response_text(client.post("/v1/completions", json=make_body(i)))
        with serve_process(endless_run, "--port", one.url.rsplit(":", 1)[1]) as new_service:
            while not count_responses(new_service):
                response_text(client.post("/v1/completions", json=make_body(0)))
