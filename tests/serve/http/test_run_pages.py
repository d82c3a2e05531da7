"""``polyhead serve --runs``: an index, pages that renew themselves, and nothing of other places."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import httpx2 as httpx
import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts
from tests.viz.html_pages import Page

from polyhead.cli import main
from polyhead.core.process_liveness import process_start_time
from polyhead.serve.http.run_pages import RunPages, find_runs, get_runs_version
from polyhead.train.run_training import run_training


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("serve-runs")
    write_texts(directory)
    for task in ("translation", "classification"):
        run_training(task_recipe(directory, task, directory / "runs" / f"{task} 1"), report=Notes())
    return directory


@pytest.fixture
def pages(place: Path) -> RunPages:
    return RunPages(place / "runs")


def get(pages: RunPages, path: str, host: str = "localhost:1", **query: list[str]) -> tuple[int, str]:
    answer = pages.respond("GET", path, query, host)
    return answer.status_code, bytes(answer.body).decode()


def test_the_index_links_every_run_and_a_run_has_its_page(pages: RunPages) -> None:
    code, text = get(pages, "/")
    links = [a["href"] for a in Page(text).all("a")]
    assert code == 200 and sorted(links) == ["/runs/classification%201", "/runs/translation%201"]
    code, text = get(pages, "/runs/translation 1")
    assert code == 200 and "connect-src 'self'" in text
    assert Page(text).data() == Page((pages.directory / "translation 1/report.html").read_text()).data()
    code, text = get(pages, "/compare", run=["translation 1", "classification 1"])
    assert code == 200 and "<h1>2 runs</h1>" in text


def test_the_version_changes_with_the_files_and_with_nothing_else(pages: RunPages, place: Path) -> None:
    run = pages.directory / "translation 1"
    before = json.loads(get(pages, "/runs/translation 1", version=[""])[1])
    assert before == json.loads(get(pages, "/runs/translation 1", version=[""])[1])
    assert before["training"] is False
    metrics = run / "metrics.jsonl"
    os.utime(metrics, ns=(metrics.stat().st_atime_ns, metrics.stat().st_mtime_ns + 10**9))
    assert json.loads(get(pages, "/runs/translation 1", version=[""])[1])["version"] != before["version"]
    assert json.loads(get(pages, "/", version=[""])[1])["training"] is True  # others may begin


def test_a_run_is_training_while_its_process_lives(pages: RunPages) -> None:
    lock = pages.directory / "translation 1/run.lock"
    mine = {"pid": os.getpid(), "host": socket.gethostname(), "start": process_start_time(os.getpid())}
    try:
        lock.write_text(json.dumps(mine))
        assert get_runs_version(find_runs(pages.directory))["training"] is True
        assert "Training: step 6 of 6." in Page(get(pages, "/runs/translation 1")[1]).words()
        lock.write_text(json.dumps(mine | {"start": 1}))  # a process of before with the same number
        assert get_runs_version(find_runs(pages.directory))["training"] is False
    finally:
        lock.unlink()


@pytest.mark.parametrize(
    ("path", "host", "code"),
    [
        ("/runs/none", "localhost", 404),
        ("/runs/..", "localhost", 404),
        ("/runs/..%2F..%2Fetc", "localhost", 404),
        ("/etc/passwd", "localhost", 404),
        ("/compare", "localhost", 400),
        ("/", "example.com", 403),
        ("/health/live", "[::1]:80", 200),
    ],
)
def test_nothing_else_is_answered(pages: RunPages, path: str, host: str, code: int) -> None:
    assert get(pages, path, host)[0] == code


def test_only_reading_is_allowed_and_damage_is_said(pages: RunPages, tmp_path: Path) -> None:
    assert pages.respond("POST", "/", {}, "localhost").status_code == 405
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/metrics.jsonl").write_text("{\n")
    code, text = get(RunPages(tmp_path), "/runs/bad")
    assert code == 500 and "is damaged" in text
    code, text = get(RunPages(tmp_path), "/")
    assert code == 200 and "is damaged" in Page(text).words()
    assert "No training has been logged here yet." in get(RunPages(tmp_path / "bad"), "/")[1]


def test_names_of_runs_are_neither_markup_nor_read_twice(tmp_path: Path) -> None:
    metrics = '{"step": 1, "split": "train", "loss": 1.0, "steps": 2}\n'
    names = ["<script>alert(1)<", "a%41 b", "x&amp;y", "中文"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(metrics)
    index = get(RunPages(tmp_path), "/")[1]
    assert "<script>alert" not in index
    links = [unquote(a["href"]) for a in Page(index).all("a")]
    assert sorted(links) == sorted(f"/runs/{name}" for name in names)
    for name in names:
        code, text = get(RunPages(tmp_path), f"/runs/{name}")
        assert code == 200 and name in Page(text).words() and "<script>alert" not in text


@pytest.mark.parametrize("samples", ["x", {"breakdowns": [1]}, {"attention": [{"weights": 3}]}])
def test_a_report_that_is_no_report_is_left_out(tmp_path: Path, samples: object) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 1.0}\n')
    (tmp_path / "odd/report.json").write_text(json.dumps({"samples": samples}))
    assert get(RunPages(tmp_path), "/runs/odd")[0] == 200


def test_the_command_serves_without_a_model_and_ends_at_a_signal(place: Path) -> None:
    command = [sys.executable, "-m", "polyhead", "serve", "--runs", str(place / "runs"), "--port", "0"]
    code = "import sys; sys.argv[0] = 'polyhead'; from polyhead.cli import main; r = main(sys.argv[1:]); "
    code += "print('torch' in sys.modules); sys.exit(r)"
    command[1:3] = ["-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"trainings in {place / 'runs'}\n"
        address = process.stdout.readline().split()[-1]
        answer = httpx.get(address, timeout=30)
        assert answer.status_code == 200 and "translation 1" in answer.text
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert httpx.get(f"{address}/runs/translation%201", timeout=30).status_code == 200
        assert httpx.head(address, timeout=30).content == b""
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        assert process.stdout.read() == "False\n"


def test_mistakes_are_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, runs = place / "runs/translation 1", place / "runs"
    for typed, said in (
        (["serve"], "RUN: missing; pass a run to serve, or --runs DIR to monitor trainings"),
        (["serve", str(run), "--runs", str(runs)],
         f"--runs shows trainings and loads no model: remove {run}, or serve it separately"),
        (["serve", "--runs", str(runs), "--host", "0.0.0.0"],
         "--runs serves only this machine, without API keys: remove --host and --api-key-file"),
        (["serve", "--runs", str(place / "none")],
         f"--runs {place}/none is not a directory; expected one with runs, such as runs/"),
        (["serve", "--runs", str(run)],
         f"--runs {run} is a run; expected the directory that contains it ({runs}), or write its "
                 f"page: polyhead report {run}"),
    ):  # fmt: skip
        assert main(typed) == 2
        assert capsys.readouterr().err == f"polyhead: {said}\n"
