"""The command with --processes, and torchrun: one output, one exit code, nobody left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.train.conftest import small_recipe, write_corpus

from polyhead.checkpoint import checkpoint
from polyhead.cli import main
from polyhead.train.distributed import launch
from polyhead.train.distributed.launch import LAUNCHED_ENV
from polyhead.viz.run_record import read_metrics

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("nobody_left")]
SLOW = partial(pytest.param, marks=pytest.mark.slow)
COMMAND = [sys.executable, "-m", "polyhead", "train"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipe_file(name: str = "mine", **train: Any) -> str:
    recipe = small_recipe(
        Path("."), name, **{"log_every": 1, "eval_every": 1000, "save_every": 1000, **train}
    )
    Path(f"{name}.yaml").write_text(recipe.dump_yaml())
    return f"{name}.yaml"


class Started:
    """A training under way."""

    def __init__(self, *arguments: str, command: list[str] = COMMAND) -> None:
        self.process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
        self.ranks: dict[int, psutil.Process] = {}

    def under_way(self, out: str = "mine", rows: int = 5) -> None:
        """Wait until its metrics say so; no sleeps decide what is tested."""
        metrics = Path(out) / "metrics.jsonl"
        deadline = time.monotonic() + 100
        while not metrics.is_file() or metrics.read_text().count("\n") < rows:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, "it took too long"
            time.sleep(0.01)
        for child in psutil.Process(self.process.pid).children(recursive=True):
            self.ranks[int(child.environ()["RANK"])] = child

    def ended(self) -> tuple[int, str]:
        """Exit code and all that was said; by then no process is left."""
        said = self.process.communicate(timeout=100)[1]
        _, left = psutil.wait_procs(self.ranks.values(), timeout=20)
        assert not left
        return self.process.returncode, said


@pytest.fixture
def nobody_left() -> Iterator[None]:
    """Processes that a test started are killed; those that were there are other tests'."""
    others = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    for child in psutil.Process().children(recursive=True):
        if child.pid not in others:
            child.kill()


def test_processes_train_as_one_would(here: Path) -> None:
    done = Started(recipe_file(steps=12, eval_every=6), "--processes", "2").ended()
    assert done[0] == 0, done[1]
    assert done[1].count("tokenizer: 280 tokens") == 1  # one process speaks
    assert "12 steps on 2 processes, to mine" in done[1]
    assert [row["step"] for row in read_metrics(Path("mine/metrics.jsonl")) if row["split"] == "train"] == [
        *range(1, 13)
    ]
    assert Path("mine/model.safetensors").is_file()


@pytest.mark.acceptance("R1")
@pytest.mark.parametrize("number", [SLOW(signal.SIGINT), signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(number: signal.Signals, here: Path) -> None:
    run = Started(recipe_file(steps=3000), "--processes", "2")
    run.under_way()
    run.process.send_signal(number)
    code, said = run.ended()
    assert code == 130, said
    (step,) = checkpoint.list_steps(Path("mine/checkpoints"))
    assert said.endswith(
        f"saved at step {step}; continue with: polyhead train mine/recipe.yaml --resume --processes 2\n"
        "report: mine/report.html\n"
    )
    on = Started("mine/recipe.yaml", "--resume", "--processes", "2", f"train.steps={step + 3}")
    assert on.ended()[0] == 0
    assert not Path("mine/run.lock").exists()


@pytest.mark.slow
def test_a_second_signal_ends_at_once(here: Path) -> None:
    run = Started(recipe_file(steps=3000, eval_every=1), "--processes", "2")
    run.under_way()
    for _ in range(2):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    code, said = run.ended()
    # to a shell both are 130: the second may reach an interpreter that is already going
    assert code in (130, -signal.SIGINT), said
    assert said.count("stopping after this step") == 1
    assert "polyhead: interrupted" in said or "saved at step" in said  # it may have been done with the first


@pytest.mark.acceptance("G1", "G3")
@pytest.mark.parametrize("rank", [SLOW(0), 1])
def test_a_killed_process_ends_all_and_is_named(rank: int, here: Path) -> None:
    run = Started(recipe_file(steps=3000), "--processes", "2")
    run.under_way()
    run.ranks[rank].kill()
    code, said = run.ended()
    assert code == 1
    assert said.split("\n")[-2] == (
        f"polyhead: rank {rank} was terminated by SIGKILL, and so were the others; --resume continues"
    )
    assert said.count("polyhead:") == 1


@pytest.mark.acceptance("G1")
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_halted_process_ends_all(rank: int, here: Path) -> None:
    run = Started(recipe_file(steps=3000), "--processes", "2", "train.timeout=2")
    run.under_way()
    run.ranks[rank].suspend()
    code, said = run.ended()
    assert code == 1
    assert "not answered for" in said.split("\n")[-2]
    assert said.count("polyhead:") == 1


@pytest.fixture
def stopped() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "600"])
    child.send_signal(signal.SIGSTOP)
    yield child
    child.kill()
    child.wait()


def test_a_stopped_process_is_not_waited_for_after_a_failure(
    stopped: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "GRACE_SECONDS", 1e6)
    failed = subprocess.Popen(["false"])
    assert launch._wait_for_all([failed, stopped], [], timeout=1e6) == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_stopped_before_it_joins_ends_all(
    rank: int,
    stopped: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(launch, "REPORT_SECONDS", 0.0)
    with subprocess.Popen(["sleep", "600"]) as other:
        children = [other, other]
        children[rank] = stopped
        assert launch._wait_for_all(children, [], timeout=0.1) == 1
        other.kill()
    said = f"polyhead: rank {rank} is stopped, and so the others were ended; --resume continues\n"
    assert capsys.readouterr().err == said


@pytest.mark.acceptance("G3")
def test_processes_save_and_end_with_their_launcher(here: Path) -> None:
    run = Started(recipe_file(steps=3000), "--processes", "2")
    run.under_way()
    run.process.kill()
    code, _ = run.ended()
    assert code == -signal.SIGKILL
    assert len(checkpoint.list_steps(Path("mine/checkpoints"))) == 1
    assert not Path("mine/run.lock").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["data.train=[none.de,none.en]"], "polyhead: data.train: no file 'none.de' in '.'"),
        SLOW(["train.freeze=[nothing]"], "polyhead: train.freeze: no part of the model is named 'nothing'"),
    ],
)
def test_a_mistake_is_told_once(changes: list[str], said: str, here: Path) -> None:
    code, heard = Started(recipe_file(), "--processes", "2", *changes).ended()
    assert code == 2, heard
    assert said in heard
    assert heard.count("polyhead: ") == 1, heard
    assert "Traceback" not in heard


def test_processes_within_processes_are_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", recipe_file(), "--processes", "2"]) == 2
    assert "already one of several" in capsys.readouterr().err
    assert LAUNCHED_ENV not in os.environ


@pytest.mark.slow
@pytest.mark.acceptance("G3", "R11")
def test_torchrun_starts_two_machines_and_starts_them_again(here: Path) -> None:
    """Two agents, one process each; the second process dies once, and all go on from the last checkpoint."""
    recipe = recipe_file(steps=60, save_every=5)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
        "--max-restarts",
                "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:29713", "-m", "polyhead",
                "train"]  # fmt: skip
    machines = [Started(recipe, command=torchrun) for _ in range(2)]
    machines[0].under_way(rows=12)
    machines[1].under_way(rows=12)
    ranks = {rank: process for machine in machines for rank, process in machine.ranks.items()}
    ranks[1].kill()
    ends = [machine.ended() for machine in machines]
    assert [code for code, _ in ends] == [0, 0], ends
    assert any("resumed at step" in said for _, said in ends)
    assert checkpoint.list_steps(Path("mine/checkpoints"))[-1] == 60


def test_processes_speak_the_language_of_the_command(here: Path) -> None:
    """Also where an option of the command chose it; refused by the processes, not by the launcher."""
    command = [sys.executable, "-m", "polyhead", "--lang", "zh", "train", recipe_file(), "--processes", "2"]
    done = subprocess.run([*command, "train.parallel.shard=3"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "polyhead: train.parallel（shard 3）需要的进程数是 3 的倍数，而进程数是 2" in done.stderr
