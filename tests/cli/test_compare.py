"""``polyhead compare`` as it is typed, its cells in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polyhead.cli import main

RECIPE = """
data: {train: [train.de, train.en], valid: [valid.de, valid.en], target_lang: en}
tokenizer: {vocab_size: 280}
model: {d_model: 16, n_layers: 1, n_heads: 2, d_ff: 32, max_len: 32, position: learned}
train: {steps: 24, max_tokens: 48, lr: 1e-2, precision: fp32, schedule: {name: constant}, threads: 1}
generation: {beam_size: 1, max_length_ratio: 1.0, max_length_extra: 0}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for split in ("train", "valid"):
        (tmp_path / f"{split}.de").write_text("ein hund bellt .\nzwei hunde schlafen .\n" * 4)
        (tmp_path / f"{split}.en").write_text("a dog barks .\ntwo dogs are asleep .\n" * 4)
    (tmp_path / "blank").write_text("\n\n")
    (tmp_path / "toy.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "polyhead", "compare", "toy.yaml", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 200
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, f"{path} does not come"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(600)  # several processes, each of which imports torch
def test_a_signal_saves_and_the_same_command_goes_on(place: Path) -> None:
    cell = place / "runs/compare-toy/cells/base.s1"
    long = ("--budget", "30steps", "train.max_tokens=24")
    first = start(*long)
    wait_for(cell / "checkpoints/latest", first)
    first.send_signal(signal.SIGTERM)
    out, err = first.communicate(timeout=200)
    assert first.returncode == 130, err
    assert "base: not run yet" in out
    assert err.endswith("The same command continues from there.\n")
    (saved,) = [json.loads(line) for line in (cell / "clock.jsonl").read_text().splitlines()][-1:]
    assert 0 < saved[0] < 30
    again = start(*long)
    out, err = again.communicate(timeout=200)
    assert again.returncode == 0, err
    assert "base: goes on" in err
    result = json.loads((cell / "result.json").read_text())
    assert (result["status"], result["steps"], result["skipped"]) == ("done", 30, 0)
    assert 2**26 < result["memory"] < 2**33
    assert [point[0] for point in result["curve"]] == list(range(2, 31, 2))
    assert result["seconds"] > saved[1]


@pytest.mark.slow
@pytest.mark.timeout(600)  # several processes, each of which imports torch
def test_a_cell_ends_when_the_comparison_is_killed(place: Path) -> None:
    cell = place / "runs/compare-toy/cells/base.s1"
    first = start("--budget", "100000steps")
    wait_for(cell / "run.lock", first)
    pid = json.loads((cell / "run.lock").read_text())["pid"]
    assert pid != first.pid
    first.kill()
    first.communicate(timeout=200)
    until = time.monotonic() + 200
    while alive(pid):
        assert time.monotonic() < until, "the cell goes on without anyone who waits for it"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return " Z " not in Path(f"/proc/{pid}/stat").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "RECIPE: missing; e.g. polyhead compare recipe.yaml --vary norm=layernorm,rmsnorm --budget 10m"),
        (["toy.yaml", "--vary", "nrm=rmsnorm"], "--vary nrm: unknown key; did you mean 'norm'?"),
        (["toy.yaml", "--vary", "norm=rmsnrm"], "model.norm: unknown norm 'rmsnrm'; did you mean 'rmsnorm'?"),
        (
            ["toy.yaml", "--budget", "soon"],
            "--budget 'soon': expected a time (90s, 10m, 1h30m), steps (2000steps)",
        ),
        (["toy.yaml", "--match", "flops"], "--match flops: only 'params' is supported"),
        (["tyo.yaml"], "tyo.yaml: no such file; did you mean 'toy.yaml'?"),
        (["toy.yaml", "data.root=nowhere"], "data.root: no directory 'nowhere'"),
        (
            ["toy.yaml", "data.valid=[blank, blank]"],
            "data.valid: no usable pair in blank + blank: 0 of 2 pairs; skipped 2 blank (first: line 1)",
        ),
        (["toy.yaml", "data.test=[blank, blank]"], "data.test: no usable pair in blank + blank"),
        (["--cell", "nowhere"], "nowhere is not a trial of a comparison: it has no cell.json"),
    ],
)
@pytest.mark.usefixtures("place")
def test_a_mistake_is_answered_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"polyhead: {message}")
    assert err.count("\n") == 1
