"""Runs killed at any step or in the middle of a save, or stopped by a signal, resume to the same bits."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest
from tests.train.conftest import CLOCK_KEYS, Notes, small_recipe, user_error, write_corpus
from tests.train.ranks import import_lazy_modules
from tests.train.task_runs import TASKS, task_recipe, write_texts

from polyhead.checkpoint import checkpoint
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.train.lock import RunLock
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_metrics

pytestmark = pytest.mark.timeout(600)
STEPS = 12
KILLED = -signal.SIGKILL


def in_child(work) -> int:
    """Run in a fork, which saves the import of torch; exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train_in_child(recipe, resume=False, report=None) -> int:
    return in_child(lambda: run_training(recipe, resume=resume, report=report or Notes()))


def die(*_) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillAt(Notes):
    """Kills its own process at the report of a step, before that step is evaluated or saved."""

    def __init__(self, step: int, split: str = "train") -> None:
        super().__init__()
        self.step, self.split = step, split

    def log_train(self, row) -> None:
        if self.split == "train" and row["step"] == self.step:
            die()

    def log_valid(self, row) -> None:
        if self.split == "valid" and row["step"] == self.step:
            die()


def digest_run(recipe: Recipe) -> dict:
    """SHA-256 of the weights and of all files of the last checkpoint, and the metrics without the clock."""
    last = recipe.out / "checkpoints" / f"step-{recipe.train.steps}"
    names = ["model.safetensors", "optimizer_0.safetensors", "state.json"]
    names += ["ema.safetensors"] if recipe.train.ema else []
    files = {name: last / name for name in names} | {"final": recipe.out / "model.safetensors"}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    rows = read_metrics(recipe.out / "metrics.jsonl")
    assert [row["step"] for row in rows if row["split"] == "train"] == list(range(1, recipe.train.steps + 1))
    skipped = CLOCK_KEYS | {"steps"}  # the number of steps may change on resume
    return digests | {"metrics": [{k: v for k, v in row.items() if k not in skipped} for row in rows]}


@pytest.fixture(scope="module")
def corpus_dir(no_report, tmp_path_factory):
    import_lazy_modules()  # once here, not in every fork
    directory = tmp_path_factory.mktemp("resume")
    write_corpus(directory)
    return directory


def recipe_in(corpus_dir, name, **train) -> Recipe:
    intervals = {"log_every": 1, "steps": STEPS, "save_every": 3, "eval_every": 3}
    return small_recipe(corpus_dir, name, **intervals | train)


@pytest.fixture(scope="module")
def expected(corpus_dir):
    """Digests of uninterrupted runs, by precision."""
    digests = {}
    for precision in ("fp32", "bf16"):
        recipe = recipe_in(corpus_dir, f"expected-{precision}", precision=precision)
        assert train_in_child(recipe) == 0
        digests[precision] = digest_run(recipe)
    return digests


FAST = (1, 7, STEPS - 2, STEPS)
STEPS_TO_KILL = [pytest.param(k, marks=[] if k in FAST else pytest.mark.slow) for k in range(1, STEPS + 1)]


@pytest.mark.acceptance("R1", "B8", "B9", "B10", "B11")
@pytest.mark.parametrize("k", STEPS_TO_KILL)
def test_killed_run_resumes_bit_for_bit(k, corpus_dir, expected):
    precision = "bf16" if k % 2 else "fp32"
    recipe = recipe_in(corpus_dir, f"killed-{k}", precision=precision, save_every=1 + k % 4)
    assert train_in_child(recipe, report=KillAt(k)) == KILLED
    assert (recipe.out / "run.lock").exists()
    due = [step for step in range(1, k) if step % (1 + k % 4) == 0]
    assert max(checkpoint.list_steps(recipe.out / "checkpoints"), default=0) >= max(due, default=0)
    assert train_in_child(recipe, resume=True) == 0
    assert digest_run(recipe) == expected[precision]
    assert not (recipe.out / "run.lock").exists()


@pytest.mark.acceptance("R1", "B1")
@pytest.mark.parametrize("point", ["tensors", "manifest", "rename", "latest", "prune", "evaluation"])
def test_run_killed_in_save_resumes_bit_for_bit(point, corpus_dir, expected, monkeypatch):
    recipe = recipe_in(corpus_dir, f"killed-{point}", keep=1)
    owner, name, n = {
        "tensors": (checkpoint.safetensors, "write_safetensors", 5),  # three files a checkpoint
        "manifest": (checkpoint, "Manifest", 2),
        "rename": (checkpoint.os, "rename", 1),
        "latest": (checkpoint, "replace_file", 2),
        "prune": (checkpoint, "remove", 1),
        "evaluation": (None, "", 0),
    }[point]
    calls = [0]

    def kill_on_call(*args, **options):
        calls[0] += point != "rename" or Path(args[1]).name == "step-6"
        return die() if calls[0] == n else function(*args, **options)

    if owner:
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, kill_on_call)
    assert train_in_child(recipe, report=None if owner else KillAt(6, "valid")) == KILLED
    monkeypatch.undo()
    assert train_in_child(recipe, resume=True) == 0
    assert digest_run(recipe) == expected["fp32"]


@pytest.mark.acceptance("R1")
def test_run_killed_three_times_resumes_bit_for_bit(corpus_dir, expected):
    """Recomputation may be changed between one resume and the next."""
    recipe = recipe_in(corpus_dir, "unlucky")
    recomputing = recipe_in(corpus_dir, "unlucky", recompute="blocks")
    for k in (2, 7, 8):
        changed = recomputing if k == 7 else recipe
        assert train_in_child(changed, resume=k > 2, report=KillAt(k)) == KILLED
    assert train_in_child(recipe, resume=True) == 0
    assert digest_run(recipe) == expected["fp32"]


OPTIONS = {
    "classification": {"token_dropout": 0.2},
    "translation": {"token_split": 0.5},
    "denoising": {"permute": True},
}


@pytest.mark.parametrize(
    "task", [pytest.param(t, marks=[] if t == "classification" else pytest.mark.slow) for t in TASKS]
)
def test_every_task_resumes_bit_for_bit(task, corpus_dir, tmp_path):
    """With the noise that tasks draw."""
    write_texts(tmp_path)
    choice = Choice(task, **OPTIONS.get(task, {}))
    uninterrupted, killed = (
        task_recipe(tmp_path, task, tmp_path / name, steps=8, log_every=1).model_copy(update={"task": choice})
        for name in ("uninterrupted", "killed")
    )
    assert train_in_child(uninterrupted) == 0
    assert train_in_child(killed, report=KillAt(5)) == KILLED
    assert train_in_child(killed, resume=True) == 0
    assert digest_run(killed) == digest_run(uninterrupted)


@pytest.mark.acceptance("R12")
def test_same_seed_gives_same_bits(corpus_dir, expected):
    repeated, other = recipe_in(corpus_dir, "repeated"), recipe_in(corpus_dir, "other", seed=8)
    for recipe in (repeated, other):
        assert train_in_child(recipe) == 0
    assert digest_run(repeated) == expected["fp32"]
    assert digest_run(other)["final"] != expected["fp32"]["final"]
    notes = Notes()  # a finished run is not changed by a resume
    _, outcome = run_training(repeated, resume=True, report=notes)
    assert (outcome.status, outcome.step, notes.rows) == ("done", STEPS, [])
    assert digest_run(repeated) == expected["fp32"]


@pytest.mark.acceptance("B12")
def test_damaged_checkpoint_is_passed_over(corpus_dir, expected, caplog):
    recipe = recipe_in(corpus_dir, "damaged")
    assert train_in_child(recipe, report=KillAt(8)) == KILLED
    path = recipe.out / "checkpoints/step-6/model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with (recipe.out / "metrics.jsonl").open("a") as file:  # and a torn row of metrics is dropped
        file.write(json.dumps({"split": "train", "step": 8})[:-4])
    notes = Notes()
    run_training(recipe, resume=True, report=notes)
    assert f"resumed at step 3 of {STEPS}" in notes.lines
    assert "step-6" in caplog.text
    assert digest_run(recipe) == expected["fp32"]


@pytest.mark.acceptance("B13")
def test_second_run_in_same_directory_is_refused(corpus_dir):
    recipe = recipe_in(corpus_dir, "busy")
    with RunLock(recipe.out), user_error(f"busy is in use by process {os.getpid()}; stop it, or choose"):
        run_training(recipe, report=Notes())
    assert not (recipe.out / "metrics.jsonl").exists()


@pytest.mark.slow
@pytest.mark.acceptance("R1")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_command_saves_and_prints_resume_command(number, corpus_dir, monkeypatch):
    """The command in a process of its own, stopped once its metrics are written."""
    monkeypatch.chdir(corpus_dir)
    name = number.name.lower()
    recipe = small_recipe(Path("."), name, steps=3000, log_every=1, save_every=500, eval_every=1000)
    Path(f"{name}.yaml").write_text(recipe.dump_yaml())
    command = [sys.executable, "-m", "polyhead", "train", f"{name}.yaml"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    metrics, deadline = Path(name) / "metrics.jsonl", time.monotonic() + 100
    while not metrics.is_file() or metrics.read_text().count("\n") < 5:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)
    process.send_signal(number)
    _, output = process.communicate(timeout=100)
    assert process.returncode == 130, output
    assert "stopping after this step; interrupt again to stop immediately, without saving" in output
    (step,) = checkpoint.list_steps(Path(name) / "checkpoints")
    assert 5 <= step < 3000
    advice = f"saved at step {step}; continue with: polyhead train {name}/recipe.yaml --resume\n"
    assert output.endswith(f"{advice}report: {name}/report.html\n")
    assert not (Path(name) / "run.lock").exists()

    def run_command(*arguments):
        return in_child(lambda: os._exit(main(["train", *arguments])))

    # the uninterrupted and the resumed run, both to the same nearby end
    steps = f"train.steps={step + 20}"
    assert run_command(f"{name}/recipe.yaml", "--resume", steps) == 0
    assert run_command(f"{name}.yaml", steps, f"out={name}-all") == 0
    resumed, uninterrupted = (
        digest_run(small_recipe(Path("."), out, steps=step + 20)) for out in (name, f"{name}-all")
    )
    assert resumed == uninterrupted
