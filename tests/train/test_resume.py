import hashlib
import json
import os
import signal
import traceback
from pathlib import Path

import pytest
from tests.train.conftest import CLOCK_KEYS, Notes, small_recipe, user_error, write_corpus
from tests.train.ranks import import_lazy_modules
from tests.train.task_runs import TASKS, task_recipe, write_texts

from polyhead import Choice
from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.train.lock import RunLock
from polyhead.train.run_training import run_training
from polyhead.viz.run_record import read_metrics

pytestmark = pytest.mark.timeout(600)
STEPS = 12
SLOW_STEPS = [*range(1, 7), *range(8, STEPS)]
KILLED_CODE = -signal.SIGKILL


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


class KillAt(Notes):
    """Kills its own process at the report of a step, before that step is evaluated or saved."""

    def __init__(self, step: int, split: str = "train") -> None:
        super().__init__()
        self.point = step, split

    def log_train(self, row, split="train") -> None:
        if self.point == (row["step"], split):
            os.kill(os.getpid(), signal.SIGKILL)

    def log_valid(self, row) -> None:
        self.log_train(row, "valid")


def digest_run(recipe: Recipe) -> dict:
    """SHA-256 of the weights and of all files of the last checkpoint, and the metrics without the clock."""
    last = recipe.out / "checkpoints" / f"step-{recipe.train.steps}"
    names = ["model.safetensors", "optimizer_0.safetensors", "state.json"]
    names += ["ema.safetensors"] if recipe.train.ema else []
    files = {name: last / name for name in names} | {"final": recipe.out / "model.safetensors"}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    rows = read_metrics(recipe.out / "metrics.jsonl")
    assert [row["step"] for row in rows if row["split"] == "train"] == list(range(1, recipe.train.steps + 1))
    skipped_keys = CLOCK_KEYS | {"steps"}  # the number of steps may change on resume
    return digests | {"metrics": [{k: v for k, v in row.items() if k not in skipped_keys} for row in rows]}


def assert_resumes(make_recipe) -> Recipe:
    """A run that is killed at step 5 of 8 resumes bit for bit; returns its recipe."""
    settings = {"steps": 8, "eval_every": 4, "save_every": 4, "log_every": 1}
    whole, killed = (make_recipe(name, **settings) for name in ("whole", "killed"))
    assert train_in_child(whole) == 0
    assert train_in_child(killed, report=KillAt(5)) == KILLED_CODE
    assert train_in_child(killed, resume=True) == 0
    assert digest_run(killed) == digest_run(whole)
    return killed


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
    digests = {}
    for precision in ("fp32", "bf16"):
        recipe = recipe_in(corpus_dir, f"expected-{precision}", precision=precision)
        assert train_in_child(recipe) == 0
        digests[precision] = digest_run(recipe)
    return digests


@pytest.mark.acceptance("R1", "B8", "B9", "B10", "B11")
@pytest.mark.parametrize("k", [7, STEPS, *(pytest.param(k, marks=pytest.mark.slow) for k in SLOW_STEPS)])
def test_killed_run_resumes_bit_for_bit(k, corpus_dir, expected):
    precision = "bf16" if k % 2 else "fp32"
    recipe = recipe_in(corpus_dir, f"killed-{k}", precision=precision, save_every=1 + k % 4)
    assert train_in_child(recipe, report=KillAt(k)) == KILLED_CODE
    assert (recipe.out / "run.lock").exists()
    due = [step for step in range(1, k) if step % (1 + k % 4) == 0]
    assert max(checkpoint.list_steps(recipe.out / "checkpoints"), default=0) >= max(due, default=0)
    assert train_in_child(recipe, resume=True) == 0
    assert digest_run(recipe) == expected[precision]
    assert not (recipe.out / "run.lock").exists()


@pytest.mark.acceptance("R1", "B1")
@pytest.mark.parametrize("point", [
    "tensors", "rename", "prune",
    *(pytest.param(point, marks=pytest.mark.slow) for point in ("manifest", "latest", "evaluation")),
])  # fmt: skip
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
        return os.kill(os.getpid(), signal.SIGKILL) if calls[0] == n else function(*args, **options)

    if owner:
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, kill_on_call)
    assert train_in_child(recipe, report=None if owner else KillAt(6, "valid")) == KILLED_CODE
    monkeypatch.undo()
    assert train_in_child(recipe, resume=True) == 0
    assert digest_run(recipe) == expected["fp32"]


@pytest.mark.acceptance("R1")
def test_run_killed_three_times_resumes_bit_for_bit(corpus_dir, expected):
    for k in (2, 7, 8):  # recomputation may be changed
        changed_recipe = recipe_in(corpus_dir, "unlucky", recompute="blocks" if k == 7 else "none")
        assert train_in_child(changed_recipe, resume=k > 2, report=KillAt(k)) == KILLED_CODE
    recipe = recipe_in(corpus_dir, "unlucky")
    assert train_in_child(recipe, resume=True) == 0
    assert digest_run(recipe) == expected["fp32"]


OPTIONS = {
    "classification": {"token_dropout": 0.2},
    "denoising": {"permute": True},
}


@pytest.mark.parametrize(
    "task", [pytest.param(t, marks=[] if t == "classification" else pytest.mark.slow) for t in TASKS]
)
def test_every_task_resumes_bit_for_bit(task, corpus_dir, tmp_path):
    write_texts(tmp_path)
    choice = TASK.check(Choice(task, **OPTIONS.get(task, {})))
    reference, killed_recipe = (
        task_recipe(tmp_path, task, tmp_path / name, steps=8, log_every=1).model_copy(update={"task": choice})
        for name in ("uninterrupted", "killed")
    )
    assert train_in_child(reference) == 0
    assert train_in_child(killed_recipe, report=KillAt(5)) == KILLED_CODE
    assert train_in_child(killed_recipe, resume=True) == 0
    assert digest_run(killed_recipe) == digest_run(reference)


@pytest.mark.acceptance("R12", "B13")
def test_same_seed_gives_same_bits(corpus_dir, expected):
    repeated_recipe, other = recipe_in(corpus_dir, "repeated"), recipe_in(corpus_dir, "other", seed=8)
    for recipe in (repeated_recipe, other):
        assert train_in_child(recipe) == 0
    assert digest_run(repeated_recipe) == expected["fp32"]
    assert digest_run(other)["final"] != expected["fp32"]["final"]
    with RunLock(other.out), user_error(f"other is in use by process {os.getpid()}; stop it, or choose"):
        run_training(other, resume=True, report=Notes())
    notes = Notes()  # a finished run is not changed by a resume
    _, outcome = run_training(repeated_recipe, resume=True, report=notes)
    assert (outcome.status, outcome.step, notes.rows) == ("done", STEPS, [])
    assert digest_run(repeated_recipe) == expected["fp32"]


@pytest.mark.acceptance("B12")
def test_damaged_checkpoint_is_passed_over(corpus_dir, expected, caplog):
    recipe = recipe_in(corpus_dir, "damaged")
    assert train_in_child(recipe, report=KillAt(8)) == KILLED_CODE
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
