"""Tests of serve/http/run_pages.py: an index of runs, and pages that renew themselves."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from urllib.parse import unquote

import httpx2
import pytest
from tests.viz.html_pages import Page

from polyhead.cli import main
from polyhead.core.atomic_io import process_start_time
from polyhead.serve.http.run_pages import RunPages, find_runs, get_runs_version

ROW = {"step": 1, "split": "train", "loss": 1.0, "steps": 6}


def write_run(run, *rows):
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def runs_dir(tmp_path):
    for name, factor in (("translation 1", 1.0), ("classification 1", 2.0)):
        rows = [ROW | {"step": step, "loss": factor / step} for step in range(1, 7)]
        valid_row = {"step": 6, "split": "valid", "loss": factor / 5}
        write_run(tmp_path / "runs" / name, *rows, valid_row)
    return tmp_path / "runs"


def get(runs_dir, path, host="localhost:1", **query):
    answer = RunPages(runs_dir).respond("GET", path, query, host)
    return answer.status_code, bytes(answer.body).decode()


def get_version(runs_dir, path):
    return dict(json.loads(get(runs_dir, path, version=[""])[1]))


def test_pages_of_runs_are_their_reports(runs_dir):
    text = get(runs_dir, "/runs/translation 1")[1]
    assert "connect-src 'self'" in text
    assert main(["report", str(runs_dir / "translation 1")]) == 0
    report = (runs_dir / "translation 1/report.html").read_text()
    assert Page(text).data() == Page(report).data() != []
    status, text = get(runs_dir, "/compare", run=["translation 1", "classification 1"])
    assert status == 200 and "<h1>2 runs</h1>" in text


def test_pages_of_a_run_are_served(runs_dir):
    def read_links(text):
        (found,) = re.findall(r'id="links">(.*?)</script>', text)
        return json.loads(found)

    run, path = runs_dir / "translation 1", "/runs/translation 1"
    assert get(runs_dir, f"{path}/explain.html")[0] == 404
    assert read_links(get(runs_dir, path)[1])["pages"] == {}
    (run / "explain.html").write_text("<p>walk</p>")
    (run / "secret.html").write_text("secret")
    assert get(runs_dir, f"{path}/explain.html") == (200, "<p>walk</p>")
    answer = RunPages(runs_dir).respond("GET", f"{path}/explain.html", {}, "localhost")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for name in ("secret.html", "config.json", "../translation 1/explain.html"):
        assert get(runs_dir, f"{path}/{name}")[0] == 404
    command = f"polyhead explain '{run}'"
    address = "translation%201/explain.html"
    links = {"pages": {"explain.html": address}, "command": command, "home": "/"}
    assert read_links(get(runs_dir, path)[1]) == links
    links["pages"] = {"explain.html": "explain.html"}  # of the address that an explanation leads to
    assert read_links(get(runs_dir, f"{path}/report.html")[1]) == links


def test_index_links_runs_with_names_escaped_once(tmp_path):
    names = ["<script>alert(1)<", "a%41 b", "x&amp;y", "中文", "b\udcff"]  # the last is no UTF-8
    for name in names:
        write_run(tmp_path / name, ROW)
    names[-1] = "b\ufffd"
    index = get(tmp_path, "/")[1]
    links = [unquote(a["href"]) for a in Page(index).all("a")]
    assert sorted(links) == sorted(f"/runs/{name}" for name in names)
    for name, (status, text) in {name: get(tmp_path, f"/runs/{name}") for name in names}.items():
        assert status == 200 and name in Page(text).words() and "<script>alert" not in index + text


def test_index_has_scores_and_loss_alone(runs_dir):
    facts = {"valid loss": 0.5, "test bleu": "38.81 (nrefs:1)", "test bleu baseline": "5.12 (copied source)"}
    facts |= {"test chrf": 62.4, "test chrf baseline": 20.1, "valid bleu": 1}
    table = "".join(f"| {name} | {value} |\n" for name, value in facts.items())
    (runs_dir / "translation 1/README.md").write_text(f"| measure | value |\n| --- | --- |\n{table}")
    row = ROW | {"step": 3, "split": "valid", "accuracy": 0.75, "mcc": 0.5, "lr": 0.1}
    write_run(runs_dir / "labels", ROW, row, row | {"step": 4, "accuracy": 0.8, "loss": 0.25})
    texts = Page(get(runs_dir, "/")[1]).texts
    heads = [text for tag, text in texts if tag == "th"]
    names = ["Accuracy (baseline)", "Matthews correlation", "BLEU (baseline)", "chrF", "Loss"]
    assert heads[:7] == ["Run", "State", *names]
    cells = [text for tag, text in texts if tag in ("a", "td")]
    at = {name: cells.index(name) for name in ("labels", "translation 1", "classification 1")}
    assert cells[at["labels"] :][:5] == ["labels", "unknown (4 of 6)", "0.8", "0.5", "0.25"]
    expected = ["translation 1", "unknown", "38.81 (5.12)", "62.4", "0.2"]
    assert cells[at["translation 1"] :][:5] == expected
    assert cells[at["classification 1"] :][:3] == ["classification 1", "unknown", "0.4"]


def test_run_is_training_while_its_process_lives(runs_dir):
    lock = runs_dir / "translation 1/run.lock"
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "start": process_start_time(os.getpid())}
    lock.write_text(json.dumps(owner))
    assert get_runs_version(find_runs(runs_dir))["training"] is True
    assert "Training: step 6 of 6." in Page(get(runs_dir, "/runs/translation 1")[1]).words()
    lock.write_text(json.dumps(owner | {"start": 1}))  # an earlier process with the same number
    assert get_runs_version(find_runs(runs_dir))["training"] is False


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/runs/none", "localhost", 404),
        ("/runs/..", "localhost", 404),
        ("/runs/..%2F..%2Fetc", "localhost", 404),
        ("/etc/passwd", "localhost", 404),
        ("/runs", "localhost", 307),
        ("/compare", "localhost", 400),
        ("/", "example.com", 403),
        ("/health/live", "[::1]:80", 200),
    ],
)
def test_other_paths_and_hosts_are_refused(runs_dir, path, host, status):
    answer, text = get(runs_dir, path, host)
    assert answer == status and "''" not in text
    assert RunPages(runs_dir).respond("POST", "/", {}, "localhost").status_code == 405


def test_damaged_and_changed_files_are_noticed(tmp_path, runs_dir):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/metrics.jsonl").write_text("{\n")
    for path, status in (("/runs/bad", 500), ("/", 200)):
        answer = get(tmp_path, path)
        assert answer[0] == status and "is damaged" in Page(answer[1]).words()
    assert "No training has been logged here yet." in get(tmp_path / "bad", "/")[1]
    version = get_version(runs_dir, "/runs/translation 1")
    assert version == get_version(runs_dir, "/runs/translation 1")
    assert version["training"] is False
    path = runs_dir / "translation 1/metrics.jsonl"
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 10**9))
    assert get_version(runs_dir, "/runs/translation 1")["version"] != version["version"]
    assert get_version(runs_dir, "/")["training"] is True  # a run may begin at any time


@pytest.mark.parametrize("samples", ["x", {"breakdowns": [1]}, {"attention": [{"weights": 3}]}])
def test_invalid_report_is_left_out(tmp_path, samples):
    write_run(tmp_path / "run", ROW)
    (tmp_path / "run/report.json").write_text(json.dumps({"samples": samples}))
    assert get(tmp_path, "/runs/run")[0] == 200


def test_command_serves_runs_without_torch(runs_dir):
    code = "import sys; sys.argv[0] = 'polyhead'; from polyhead.cli import main; code = main(sys.argv[1:]); "
    code += "print('torch' in sys.modules); sys.exit(code)"
    command = [sys.executable, "-c", code, "serve", "--runs", str(runs_dir), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"trainings in {runs_dir}\n"
        address = process.stdout.readline().split()[-1]
        answer = httpx2.get(address, timeout=100)
        assert answer.status_code == 200 and "translation 1" in answer.text
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert httpx2.get(f"{address}/runs/translation%201", timeout=100).status_code == 200
        assert httpx2.head(address, timeout=100).content == b""
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=100) == 0
        assert process.stdout.read() == "False\n"


def test_wrong_options_of_the_command_are_refused(runs_dir, capsys):
    run = runs_dir / "translation 1"
    for arguments, *words in (
        ([], "RUN: missing", "--runs DIR"),
        ([run, "--runs", runs_dir], f"--runs shows trainings and loads no model: remove {run}"),
        (["--runs", runs_dir, "--host", "0.0.0.0"], "--runs serves only this machine", "remove --host"),
        (["--runs", runs_dir / "none"], f"--runs {runs_dir}/none is not a directory"),
        (["--runs", run], f"--runs {run} is a run", f"({runs_dir})", f"polyhead report {run}"),
    ):
        assert main(["serve", *map(str, arguments)]) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        for word in words:
            assert word in message
