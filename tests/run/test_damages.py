import hashlib
import os
import random
import shutil
import signal
from typing import Any, NamedTuple

import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts

import polyhead as ph
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.nn.state import named_state
from polyhead.run.verify_run import verify_run
from polyhead.train.run_training import run_training

pytestmark = pytest.mark.slow

N_ROUNDS, N_PER_ROUND, RESUME_EVERY = 20, 100, 10
TIME_LIMIT = 120  # seconds per damage: what waits for a fifo waits forever
TASKS = {"translation": {"average_checkpoints": 2}, "language-model": {"ema": 0.5}}
TASKS["classification"] = {"eval_every": 2}
COVERED_FILES = ["config.json", "generation_config.json", "manifest.json", "model.safetensors", "recipe.yaml"]
COVERED_FILES += ["tokenizer.json", "tokenizer_config.json"]


class Pristine(NamedTuple):
    recipe: Recipe
    fingerprint: dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("damages")
    write_texts(directory)
    runs = {}
    for task, train in TASKS.items():
        recipe = task_recipe(directory, task, directory / task, save_every=2, keep=2, **train)
        run_training(recipe, report=Notes())
        runs[task] = Pristine(recipe, fingerprint(ph.load(recipe.out)))
    return runs


def fingerprint(run):
    """Everything that outputs depend on, and some outputs."""
    digest = hashlib.sha256()
    for name, tensor in sorted(named_state(run.model).items()):
        digest.update(name.encode() + tensor.detach().numpy().tobytes())
    texts = ["red blue", "the house is green"]
    calls = {
        "encoder-decoder": lambda: run.translate(texts),
        "decoder": lambda: run.generate(texts, seed=1, max_new_tokens=4),
        "classifier": lambda: run.classify(texts),
    }
    settings = (run.config, run.generation, run.tokenizer.sha256, run.tokenizer.role_ids)
    return {"weights": digest.hexdigest(), "settings": settings, "outputs": calls[run.kind]()}


def flip_bits(path, content, rng, other):
    content_copy = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 64]) if content else 0):
        content_copy[rng.randrange(len(content_copy))] ^= 1 << rng.randrange(8)
    path.write_bytes(content_copy)


def write_zeros(path, content, rng, other):
    """Write a block of zeros, as a file system leaves it after a power failure."""
    start = rng.randrange(len(content) + 1)
    length = min(rng.choice([1, 512, 4096]), len(content) - start)
    path.write_bytes(content[:start] + bytes(length) + content[start + length :])


def link(path, content, rng, other):
    path.symlink_to(rng.choice([path.name, "nothing", "/dev/zero", "/dev/null", str(other)]))


# each is called with a path, its content, the generator and another file, and writes something else
DAMAGES = {
    "flip": (flip_bits, 3),
    "cut": (lambda path, content, rng, _: path.write_bytes(content[: rng.randrange(len(content) + 1)]), 2),
    "extend": (lambda path, content, rng, _: path.write_bytes(content + rng.randbytes(4096)), 1),
    "zeros": (write_zeros, 1),
    "swap": (lambda path, content, rng, other: path.write_bytes(other.read_bytes()), 2),
    "scramble": (lambda path, content, rng, other: path.write_bytes(rng.randbytes(len(content))), 1),
    "empty": (lambda path, *_: path.write_bytes(b""), 1),
    "delete": (lambda *_: None, 2),
    "fifo": (lambda path, *_: os.mkfifo(path), 1),
    "directory": (lambda path, *_: path.mkdir(), 1),
    "link": (link, 1),
}
NAMES = [name for name, (_, weight) in DAMAGES.items() for _ in range(weight)]


def damage_file(directory, rng, other_paths):
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink()]
    at_top = [path for path in files if path.parent == directory and path.name in COVERED_FILES]
    path = rng.choice(rng.choice([at_top, files]) or files)
    name = rng.choice(NAMES)
    # the same file of another run or step is easily confused with it
    twins = [other for other in [*other_paths, *files] if other.name == path.name and other != path]
    other = rng.choice(twins if twins and rng.random() < 0.7 else files)
    content = path.read_bytes()
    if name == "swap" and other.read_bytes() == content:
        name = "flip"
    path.unlink()
    DAMAGES[name][0](path, content, rng, other)
    return f"{name} {path.relative_to(directory)}"


def same_content(a, b):
    return a.is_file() and a.read_bytes() == b.read_bytes()


def find_fault(directory, pristine, caplog):
    """Why the damage to a run is not handled as it must be; "" if it is."""
    caplog.clear()
    try:
        actual = fingerprint(ph.load(directory))
    except UserError as error:
        if "\n" in str(error) or not any(name in str(error) for name in (str(directory), *COVERED_FILES)):
            return f"load: the message {str(error)!r} names no file, or has several lines"
    else:
        differences = [name for name in actual if actual[name] != pristine.fingerprint[name]]
        if differences and not caplog.messages:
            return f"load: {differences} changed silently"
        if "weights" in differences and "has no model.safetensors" not in caplog.text:
            return "load: other weights, and no message"
    caplog.clear()
    out = pristine.recipe.out
    changed_names = {name for name in COVERED_FILES if not same_content(directory / name, out / name)}
    links = {name for name in COVERED_FILES if (directory / name).is_symlink()}
    changed_names |= links - {"model.safetensors"}  # weights may be elsewhere
    for path in [path.relative_to(out) for path in out.glob("checkpoints/step-*/*")]:
        if not same_content(directory / path, out / path) or (directory / path).is_symlink():
            changed_names.add(str(path.parent))
    reported_names = {file.name for file in verify_run(directory) if file.status != "ok"} - {str(directory)}
    if "manifest.json" in changed_names:  # lost, or that of another run: only checkpoints have digests
        reported_names -= set(COVERED_FILES)
        changed_names -= set(COVERED_FILES)
    if reported_names != changed_names:
        return f"verify: {sorted(reported_names)} for {sorted(changed_names)}"
    return ""


def find_resume_fault(directory, pristine, caplog):
    caplog.clear()
    recipe = pristine.recipe.model_copy(update={"out": directory})
    try:
        run_training(recipe, resume=True, report=Notes())
        weights = fingerprint(ph.load(directory))["weights"]
    except UserError as error:
        return f"resume: {str(error)!r} has several lines" if "\n" in str(error) else ""
    if weights != pristine.fingerprint["weights"] and not caplog.messages:
        return "resume: other weights, and no message"
    return ""


@pytest.fixture
def alarm():
    """An alarm is an error of the test, not the end of the process."""

    def fail(*_):
        raise TimeoutError(f"more than {TIME_LIMIT} s")

    previous = signal.signal(signal.SIGALRM, fail)
    yield
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.usefixtures("alarm")
@pytest.mark.acceptance("B12")
@pytest.mark.parametrize("number", range(N_ROUNDS))
def test_damage_is_reported_without_a_crash(number, runs, tmp_path, caplog):
    rng, faults = random.Random(number), []
    other_paths = [path for run in runs.values() for path in run.recipe.out.rglob("*") if path.is_file()]
    for index in range(N_PER_ROUND):
        task = rng.choice(list(runs))
        pristine, directory = runs[task], tmp_path / "run"
        shutil.copytree(pristine.recipe.out, directory, ignore=shutil.ignore_patterns("*.html", "data"))
        names = []
        if rng.random() < 0.2:  # so that the checkpoints matter for outputs
            (directory / "model.safetensors").unlink()
            names.append("delete model.safetensors")
        names.append(damage_file(directory, rng, other_paths))
        signal.alarm(TIME_LIMIT)
        try:
            fault = find_fault(directory, pristine, caplog)
            if not fault and index % RESUME_EVERY == 0:
                fault = find_resume_fault(directory, pristine, caplog)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
        if fault:
            faults.append(f"{number}/{index} {task}, {' and '.join(names)}: {fault}")
        shutil.rmtree(directory)
    assert not faults, "\n".join(faults)
