"""Real runs killed at every step, in the middle of a save, by Ctrl-C: each goes on to the same bits."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.train.conftest import Notes, small_recipe, write_corpus

from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.train.lock import RunLock
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_metrics

pytestmark = pytest.mark.timeout(600)  # the first test makes the runs that all are compared with
STEPS = 40
KILLED = -signal.SIGKILL
UNEQUAL = {
    "tokens_per_s",
    "texts_per_s",
    "ms_per_step",
    "seconds",
    "steps",
}  # the clock, and the end that a resume may move


def in_child(work: Callable[[], Any]) -> int:
    """Run in a fork, which spares the import of torch; returns its exit code, or minus the signal that ended
    it.
    """
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(Notes):
    """Kills its own process at the report of a step, before that step is evaluated or saved."""

    def __init__(self, step: int, split: str = "train") -> None:
        super().__init__()
        self.step, self.split = step, split

    def log_train(self, row: Any) -> None:
        if self.split == "train" and row["step"] == self.step:
            die()

    def log_valid(self, row: Any) -> None:
        if self.split == "valid" and row["step"] == self.step:
            die()


def result(recipe: Recipe) -> dict[str, Any]:
    """SHA-256 of the weights and of all that the last checkpoint holds, and the metrics without the clock."""
    last = recipe.out / "checkpoints" / f"step-{recipe.train.steps}"
    names = ("model.safetensors", "optimizer_0.safetensors", "ema.safetensors", "state.json")
    files = {name: last / name for name in names} | {"final": recipe.out / "model.safetensors"}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    rows = read_metrics(recipe.out / "metrics.jsonl")
    assert [row["step"] for row in rows if row["split"] == "train"] == list(range(1, recipe.train.steps + 1))
    return digests | {"metrics": [{k: v for k, v in row.items() if k not in UNEQUAL} for row in rows]}


@pytest.fixture(scope="module")
def place(unsynced: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("resume")
    write_corpus(directory)
    return directory


def recipe_at(place: Path, name: str, **train: Any) -> Recipe:
    return small_recipe(place, name, **{"log_every": 1, "steps": STEPS, **train})


@pytest.fixture(scope="module")
def whole(place: Path) -> dict[str, dict[str, Any]]:
    """What comes out of runs that nothing disturbs, by precision."""
    found = {}
    for precision in ("fp32", "bf16"):
        recipe = recipe_at(place, f"whole-{precision}", precision=precision)
        assert in_child(lambda recipe=recipe: run_training(recipe, report=Notes())) == 0
        found[precision] = result(recipe)
    return found


def every(n: int) -> list[Any]:
    """All steps; those that are no multiple of n (or the first and the last) are slow."""
    fast = {1, STEPS - 1, STEPS, *range(n, STEPS, n)}
    return [pytest.param(k, marks=[] if k in fast else pytest.mark.slow) for k in range(1, STEPS + 1)]


@pytest.mark.acceptance("R1", "B8", "B9", "B10", "B11")
@pytest.mark.parametrize("k", every(13))
def test_a_run_killed_at_any_step_ends_with_the_same_bits(k: int, place: Path, whole: dict[str, Any]) -> None:
    precision = "bf16" if k % 2 else "fp32"
    recipe = recipe_at(place, f"killed-{k}", precision=precision, save_every=1 + k % 7)
    assert in_child(lambda: run_training(recipe, report=Deadly(k))) == KILLED
    assert (recipe.out / "run.lock").exists()
    there = [step for step in range(1, k) if step % (1 + k % 7) == 0]
    assert max(checkpoint.list_steps(recipe.out / "checkpoints"), default=0) >= max(there, default=0)
    assert in_child(lambda: run_training(recipe, resume=True, report=Notes())) == 0
    assert result(recipe) == whole[precision]
    assert not (recipe.out / "run.lock").exists()


@pytest.mark.acceptance("R1", "B1")
@pytest.mark.parametrize("where", ["first tensor", "manifest", "rename", "latest", "prune", "evaluation"])
def test_a_run_killed_while_it_saves_ends_with_the_same_bits(
    where: str, place: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_at(place, f"killed-{where.replace(' ', '-')}", keep=1)
    calls = [0]

    def deadly(real: Callable[..., Any], at: int) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls[0] += 1
            return die() if calls[0] == at else real(*args, **options)

        return call

    points = {
        "first tensor": (checkpoint.safetensors, "write_safetensors", 6),
        "manifest": (checkpoint, "Manifest", 3),
        "rename": (checkpoint.os, "rename", 30),
        "latest": (checkpoint, "replace_file", 3),
        "prune": (checkpoint, "remove", 12),
    }

    def killed() -> None:
        if where in points:
            module, name, at = points[where]
            monkeypatch.setattr(module, name, deadly(getattr(module, name), at))
        run_training(recipe, report=Deadly(14, "valid"))

    assert in_child(killed) == KILLED
    assert in_child(lambda: run_training(recipe, resume=True, report=Notes())) == 0
    assert result(recipe) == whole["fp32"]


@pytest.mark.acceptance("R1")
def test_a_run_killed_again_and_again_ends_with_the_same_bits(place: Path, whole: dict[str, Any]) -> None:
    """Even if it recomputes activations from one resume to the next, which may be changed at any time."""
    recipe = recipe_at(place, "unlucky", save_every=3)
    recomputed = recipe_at(place, "unlucky", save_every=3, recompute="blocks")
    for k in (2, 19, 20):
        report, resume, design = Deadly(k), k > 2, recomputed if k == 19 else recipe
        assert (
            in_child(
                lambda design=design, report=report, resume=resume: run_training(
                    design, resume=resume, report=report
                )
            )
            == KILLED
        )
    assert in_child(lambda: run_training(recipe, resume=True, report=Notes())) == 0
    assert result(recipe) == whole["fp32"]


@pytest.mark.acceptance("R12")
def test_the_same_seed_gives_the_same_bits(place: Path, whole: dict[str, Any]) -> None:
    again, other = recipe_at(place, "again"), recipe_at(place, "other", seed=8)
    for recipe in (again, other):
        assert in_child(lambda recipe=recipe: run_training(recipe, report=Notes())) == 0
    assert result(again) == whole["fp32"]
    assert result(other)["final"] != whole["fp32"]["final"]
    notes = Notes()  # what is finished stays as it is, however often it is resumed
    _, outcome = run_training(again, resume=True, report=notes)
    assert (outcome.status, outcome.step, notes.rows) == ("done", STEPS, [])
    assert result(again) == whole["fp32"]


@pytest.mark.acceptance("B12")
def test_a_damaged_checkpoint_is_passed_over(
    place: Path, whole: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    recipe = recipe_at(place, "damaged")
    assert in_child(lambda: run_training(recipe, report=Deadly(30))) == KILLED
    path = recipe.out / "checkpoints" / "step-28" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    notes = Notes()
    run_training(recipe, resume=True, report=notes)
    assert "resumed at step 21 of 40" in notes.said
    assert "step-28" in caplog.text
    assert result(recipe) == whole["fp32"]


@pytest.mark.acceptance("B13")
def test_a_second_run_in_the_directory_is_refused(place: Path) -> None:
    recipe = recipe_at(place, "busy")
    with (
        RunLock(recipe.out),
        pytest.raises(UserError, match=f"busy is in use by process {os.getpid()}; stop it, or choose"),
    ):
        run_training(recipe, report=Notes())
    assert not (recipe.out / "metrics.jsonl").exists()


@pytest.mark.acceptance("R1")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(
    number: signal.Signals, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command itself, in a process of its own; no sleeps: it is stopped when its metrics say it is under
    way.
    """
    monkeypatch.chdir(place)
    name = number.name.lower()
    recipe = small_recipe(Path("."), name, steps=3000, log_every=1, save_every=500, eval_every=1000)
    Path(f"{name}.yaml").write_text(recipe.dump_yaml())
    command = [sys.executable, "-m", "polyhead", "train"]
    process = subprocess.Popen([*command, f"{name}.yaml"], stderr=subprocess.PIPE, text=True)
    metrics = Path(name) / "metrics.jsonl"
    until(lambda: metrics.is_file() and metrics.read_text().count("\n") >= 5, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 130, said
    assert "stopping after this step; interrupt again to stop immediately, without saving" in said
    (step,) = checkpoint.list_steps(Path(name) / "checkpoints")
    assert 5 <= step < 3000
    how = f"saved at step {step}; continue with: polyhead train {name}/recipe.yaml --resume\n"
    assert said.endswith(f"{how}report: {name}/report.html\n")
    assert not (Path(name) / "run.lock").exists()

    # the run as it would have been, and the run that goes on, both to the same nearby end
    steps = f"train.steps={step + 20}"
    assert in_child(lambda: main(["train", f"{name}/recipe.yaml", "--resume", steps])) == 0
    assert in_child(lambda: main(["train", f"{name}.yaml", steps, f"out={name}-whole"])) == 0
    whole, resumed = (
        result(small_recipe(Path("."), out, steps=step + 20)) for out in (f"{name}-whole", name)
    )
    assert whole == resumed


def main(arguments: list[str]) -> None:
    from polyhead.cli import main

    assert main(arguments) == 0


def until(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for something that a process does, but not for ever."""
    deadline = time.monotonic() + 100
    while not there():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


def test_a_torn_last_row_of_metrics_is_dropped(place: Path, whole: dict[str, Any]) -> None:
    recipe = recipe_at(place, "torn")
    assert in_child(lambda: run_training(recipe, report=Deadly(17))) == KILLED
    with (recipe.out / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"split": "train", "step": 15})[:-4])
    run_training(recipe, resume=True, report=Notes())
    assert result(recipe) == whole["fp32"]
