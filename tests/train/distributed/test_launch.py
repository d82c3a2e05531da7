import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.train.conftest import small_recipe, write_corpus

from polyhead.checkpoint import checkpoint
from polyhead.cli import main
from polyhead.train.distributed import launch
from polyhead.train.distributed.launch import LAUNCHED_ENV
from polyhead.viz.run_record import read_metrics

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("kill_children")]
SLOW = partial(pytest.param, marks=pytest.mark.slow)
COMMAND = [sys.executable, "-m", "polyhead", "train"]


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    write_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def kill_children():
    children_at_start = set(psutil.Process().children(recursive=True))
    yield
    for child in set(psutil.Process().children(recursive=True)) - children_at_start:
        child.kill()


def write_recipe(**train) -> str:
    intervals = {"log_every": 1, "eval_every": 1000, "save_every": 1000}
    Path("mine.yaml").write_text(small_recipe(Path("."), "mine", **intervals | train).dump_yaml())
    return "mine.yaml"


class Training:
    def __init__(self, *arguments: str, command: list[str] = COMMAND) -> None:
        self.process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
        self.ranks: dict[int, psutil.Process] = {}

    def wait_for_rows(self, n_rows: int = 5) -> None:
        metrics = Path("mine/metrics.jsonl")
        while not metrics.is_file() or metrics.read_text().count("\n") < n_rows:
            assert self.process.poll() is None, self.process.communicate()[1]

            time.sleep(0.01)
        for child in psutil.Process(self.process.pid).children(recursive=True):
            self.ranks[int(child.environ()["RANK"])] = child

    def finish(self) -> tuple[int, str]:
        output = self.process.communicate()[1]
        psutil.wait_procs(self.ranks.values())
        return self.process.returncode, output


def start(*arguments: str, **train) -> Training:
    training = Training(write_recipe(**{"steps": 3000, **train}), "--processes", "2", *arguments)
    training.wait_for_rows()
    return training


@pytest.mark.acceptance("R1")
@pytest.mark.parametrize("number", [SLOW(signal.SIGINT), signal.SIGTERM])
def test_signal_to_launcher_saves_and_prints_resume_command(number, workdir):
    training = start()
    training.process.send_signal(number)
    code, output = training.finish()
    assert code == 130, output
    assert output.count("tokenizer: 280 tokens") == 1  # one process prints
    assert "3,000 steps on 2 processes, to mine" in output
    (step,) = checkpoint.list_steps(Path("mine/checkpoints"))
    assert output.endswith(
        f"saved at step {step}; continue with: polyhead train mine/recipe.yaml --resume --processes 2\n"
        "report: mine/report.html\n"
    )
    assert not Path("mine/run.lock").exists()
    if number is signal.SIGINT:
        resumed_run = Training("mine/recipe.yaml", "--resume", "--processes", "2", f"train.steps={step + 3}")
        assert resumed_run.finish()[0] == 0
        rows = read_metrics(Path("mine/metrics.jsonl"))
        steps = [row["step"] for row in rows if row["split"] == "train"]
        assert steps == list(range(1, step + 4)) and Path("mine/model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.acceptance("G3")
def test_ranks_save_and_end_when_launcher_is_killed(workdir):
    training = start()
    training.process.kill()
    assert training.finish()[0] == -signal.SIGKILL
    assert len(checkpoint.list_steps(Path("mine/checkpoints"))) == 1
    assert not Path("mine/run.lock").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ([], "data.train=[none.de,none.en]", "polyhead: data.train: no file 'none.de' in '.'"),
        ([], "train.freeze=[other]", "polyhead: train.freeze: no part of the model is named 'other'"),
        (["--lang", "zh"], "train.parallel.shard=3", "polyhead: train.parallel（shard 3）需要的进程数是 3"),
    ],
)
def test_error_of_ranks_is_printed_once(options, change, message, workdir):
    command = [*COMMAND[:-1], *options, "train"]
    code, output = Training(write_recipe(), "--processes", "2", change, command=command).finish()
    assert code == 2 and message in output
    assert output.count("polyhead: ") == 1 and "Traceback" not in output


@pytest.mark.slow
@pytest.mark.acceptance("G3", "R11")
def test_torchrun_restarts_two_machines_from_checkpoint(workdir):
    with launch.socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = (
        f"--nnodes 2 --nproc-per-node 1 --max-restarts 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port}"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", *options.split(), "-m", "polyhead", "train"]
    recipe = write_recipe(steps=60, save_every=5)
    machines = [Training(recipe, command=torchrun) for _ in range(2)]
    for machine in machines:
        machine.wait_for_rows(12)
    ranks = {rank: process for machine in machines for rank, process in machine.ranks.items()}
    ranks[1].kill()
    results = [machine.finish() for machine in machines]
    assert [code for code, _ in results] == [0, 0], results
    assert any("resumed at step" in output for _, output in results)
    assert checkpoint.list_steps(Path("mine/checkpoints"))[-1] == 60


def launch_scripts(tmp_path, monkeypatch, script: str, *arguments: str) -> int:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    return launch.launch(arguments, 2, timeout=1e6)


# signals the launcher, its parent, again and again; exits at the second signal that comes back
END_AT_SECOND_SIGNAL = """
trap 'trap "exit 130" TERM' TERM
for i in $(seq 999); do kill $PPID; sleep 0.01; done
exit 3"""


def test_ranks_get_arguments_and_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "get_language", lambda: "zh")
    variables = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR POLYHEAD_LANG POLYHEAD_LAUNCHED"
    values = " ".join(f"${name}" for name in variables.split())
    script = f'echo {values} "$@" > {tmp_path}/$RANK'
    assert launch_scripts(tmp_path, monkeypatch, script, "a.yaml", "b=1") == 0
    for rank in "01":
        expected = f"{rank} {rank} 2 2 127.0.0.1 zh 1 -m polyhead train a.yaml b=1\n"
        assert (tmp_path / rank).read_text() == expected


@pytest.mark.acceptance("G1", "G3")
@pytest.mark.parametrize(
    ("scripts", "code", "message"),
    [
        (["exit 0", "exit 0"], 0, ""),
        (["exit 130", "exit 130"], 130, ""),
        (["exit 69", "exit 2"], 2, ""),  # the rank that failed has printed its error
        (["exit 69", "exit 69"], 1, "the processes lost their connection; --resume continues"),
        (["exec sleep 600", "kill -9 $$"], 1, "rank 1 was terminated by SIGKILL, and so were the others; "),
        (["kill -9 $$", "exit 69"], 1, "rank 0 was terminated by SIGKILL, and so were the others; "),
        ([END_AT_SECOND_SIGNAL, "exit 0"], 130, ""),  # rank 0 decides how to end: both are forwarded
    ],
)
def test_exit_codes_of_ranks_become_one(scripts, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.5)
    script = f"if [ $RANK = 0 ]; then {scripts[0]}; else {scripts[1]}; fi"
    assert launch_scripts(tmp_path, monkeypatch, script) == code
    error = capsys.readouterr().err
    assert error.startswith(f"polyhead: {message}") and error.count("\n") == 1 if message else not error


@pytest.fixture
def stopped_process():
    child = subprocess.Popen(["sleep", "600"])
    child.send_signal(signal.SIGSTOP)
    yield child
    child.kill()
    child.wait()


def test_stopped_process_is_killed_after_a_failure(stopped_process, monkeypatch):
    monkeypatch.setattr(launch, "GRACE_SECONDS", 1e6)
    assert launch._wait_for_all([subprocess.Popen(["false"]), stopped_process], [], timeout=1e6) == 1


def test_stopped_process_ends_the_grace(stopped_process, monkeypatch):
    monkeypatch.setattr(launch, "GRACE_SECONDS", 1e6)
    monkeypatch.setattr(launch, "REPORT_SECONDS", 1.0)
    with subprocess.Popen(["sleep", "600"]) as running:
        children = [running, stopped_process, subprocess.Popen(["false"])]
        assert launch._wait_for_all(children, [], timeout=0.1) == 1
        running.kill()


@pytest.mark.parametrize("rank", [0, 1])
def test_process_stopped_before_joining_ends_all(rank, stopped_process, monkeypatch, capsys):
    monkeypatch.setattr(launch, "REPORT_SECONDS", 0.0)
    with subprocess.Popen(["sleep", "600"]) as running:
        children = [running, running]
        children[rank] = stopped_process
        assert launch._wait_for_all(children, [], timeout=0.1) == 1
        running.kill()
    message = f"polyhead: rank {rank} is stopped, and so the others were ended; --resume continues\n"
    assert capsys.readouterr().err == message


def test_launcher_inside_launched_process_is_refused(workdir, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", write_recipe(), "--processes", "2"]) == 2
    assert "already one of several" in capsys.readouterr().err
    assert LAUNCHED_ENV not in os.environ


def test_process_waited_for_elsewhere_is_not_stopped():
    child = subprocess.Popen(["true"])
    os.waitpid(child.pid, 0)
    assert not launch._is_stopped(child)
