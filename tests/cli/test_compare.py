"""Tests of cli/compare.py: trials in processes, stopped by signals; `mistakes.txt` has its messages."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

RECIPE = """
data: {train: [train.de, train.en], valid: [valid.de, valid.en], target_lang: en}
tokenizer: {vocab_size: 280}
model: {d_model: 16, n_layers: 1, n_heads: 2, d_ff: 32, max_len: 32, position: learned}
train: {steps: 24, max_tokens: 48, lr: 1e-2, precision: fp32, schedule: {name: constant}, threads: 1}
generation: {beam_size: 1, max_length_ratio: 1.0, max_length_extra: 0}
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # several processes, each of which imports torch


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    for split in ("train", "valid"):
        (tmp_path / f"{split}.de").write_text("ein hund bellt .\nzwei hunde schlafen .\n" * 4)
        (tmp_path / f"{split}.en").write_text("a dog barks .\ntwo dogs are asleep .\n" * 4)
    (tmp_path / "toy.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*arguments):
    command = [sys.executable, "-m", "polyhead", "compare", "toy.yaml", "--vary", "norm=rmsnorm", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_sigterm_saves_and_same_command_resumes(workdir):
    trial = workdir / "runs/compare-toy/cells/base.s1"
    options = ("--budget", "30steps", "train.max_tokens=24")
    process = start(*options)
    wait_for(trial / "checkpoints/latest", process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert process.returncode == 130 and "base: not run yet" in out, err
    assert err.endswith("The same command continues from there.\n")
    step, seconds = json.loads((trial / "clock.jsonl").read_text().splitlines()[-1])
    assert 0 < step < 30
    process = start(*options)
    out, err = process.communicate()
    assert process.returncode == 0 and "base: continues" in err, err
    result = json.loads((trial / "result.json").read_text())
    assert (result["status"], result["steps"], result["skipped"]) == ("done", 30, 0)
    assert 2**26 < result["memory"] < 2**33
    assert [point[0] for point in result["curve"]] == list(range(2, 31, 2))
    assert result["seconds"] > seconds


def test_trial_ends_when_comparison_is_killed(workdir):
    trial = workdir / "runs/compare-toy/cells/base.s1"
    process = start("--budget", "100000steps")
    wait_for(trial / "run.lock", process)
    child = psutil.Process(json.loads((trial / "run.lock").read_text())["pid"])
    assert child.pid != process.pid
    process.kill()
    process.communicate()
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.02)
