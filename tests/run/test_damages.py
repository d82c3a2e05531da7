"""2,000 damages to run directories by a seeded generator: none is silent, and none is a crash."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.train.conftest import Notes
from tests.train.task_runs import task_recipe, write_texts

import polyhead as ph
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.nn.state import named_state
from polyhead.run.run import Run
from polyhead.run.verify_run import verify_run
from polyhead.train.run_training import run_training

pytestmark = pytest.mark.slow

N_ROUNDS, N_PER_ROUND, RESUME_EVERY = 20, 100, 10
TIME_LIMIT = 120  # seconds per damage: what waits for a fifo waits forever
TASKS = {
    "translation": {"average_checkpoints": 2},
    "language-model": {"ema": 0.5},
    "classification": {"eval_every": 2},
}
COVERED = ("config.json", "generation_config.json", "manifest.json", "model.safetensors", "recipe.yaml",
           "tokenizer.json", "tokenizer_config.json")  # fmt: skip


class Pristine(NamedTuple):
    """A finished run as training left it."""

    recipe: Recipe
    fingerprint: dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pristine]:
    place = tmp_path_factory.mktemp("damages")
    write_texts(place)
    found = {}
    for task, train in TASKS.items():
        recipe = task_recipe(place, task, place / task, save_every=2, keep=2, **train)
        run_training(recipe, report=Notes())
        found[task] = Pristine(recipe, fingerprint(ph.load(recipe.out)))
    return found


def fingerprint(run: Run) -> dict[str, Any]:
    """Everything that outputs depend on, and some outputs."""
    digest = hashlib.sha256()
    for name, tensor in sorted(named_state(run.model).items()):
        digest.update(name.encode() + tensor.detach().numpy().tobytes())
    texts = ["red blue", "the house is green"]
    outputs: Any = {
        "encoder-decoder": lambda: run.translate(texts),
        "decoder": lambda: run.generate(texts, seed=1, max_new_tokens=4),
        "classifier": lambda: run.classify(texts),
    }[run.kind]()
    return {
        "weights": digest.hexdigest(),
        "settings": (run.config, run.generation, run.tokenizer.sha256, run.tokenizer.role_ids),
        "outputs": outputs,
    }


# each takes the path, its content, the generator and another file, and puts something else in its place


def flip(path: Path, content: bytes, rng: random.Random, other: Path) -> None:
    bad = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 64])):
        if bad:
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
    path.write_bytes(bad)


def cut(path: Path, content: bytes, rng: random.Random, other: Path) -> None:
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def extend(path: Path, content: bytes, rng: random.Random, other: Path) -> None:
    path.write_bytes(content + rng.randbytes(rng.choice([1, 8, 4096])))


def blank_out(path: Path, content: bytes, rng: random.Random, other: Path) -> None:
    """A block of zeros, as a file system leaves it after a power failure."""
    start = rng.randrange(len(content) + 1)
    length = min(rng.choice([1, 512, 4096]), len(content) - start)
    path.write_bytes(content[:start] + bytes(length) + content[start + length :])


def swap(path: Path, content: bytes, rng: random.Random, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def scramble(path: Path, content: bytes, rng: random.Random, other: Path) -> None:
    path.write_bytes(rng.randbytes(len(content)))


def empty(path: Path, content: bytes, rng: random.Random, other: Path) -> None:
    path.write_bytes(b"")


def delete(path: Path, content: bytes, rng: random.Random, other: Path) -> None:
    pass


def put_fifo(path: Path, content: bytes, rng: random.Random, other: Path) -> None:
    os.mkfifo(path)


def put_directory(path: Path, content: bytes, rng: random.Random, other: Path) -> None:
    path.mkdir()


def put_link(path: Path, content: bytes, rng: random.Random, other: Path) -> None:
    """A loop, a link to nothing, to a device, or to another file."""
    path.symlink_to(rng.choice([path.name, "nothing", "/dev/zero", "/dev/null", str(other)]))


DAMAGES: list[Callable[[Path, bytes, random.Random, Path], None]] = [
    flip, flip, flip, cut, cut, extend, blank_out, swap, swap, scramble, empty, delete, delete, put_fifo,
    put_directory, put_link,
]  # fmt: skip


def damage_file(directory: Path, rng: random.Random, others: list[Path]) -> str:
    """Damage, delete or replace one file of a run; returns what was done."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink()]
    at_top = [path for path in files if path.parent == directory and path.name in COVERED]
    path = rng.choice(rng.choice([at_top, files]) or files)
    damage = rng.choice(DAMAGES)
    # the same file of another run or step is the likeliest to be taken for it
    twins = [other for other in [*others, *files] if other.name == path.name and other != path]
    other = rng.choice(twins if twins and rng.random() < 0.7 else files)
    if damage is swap and other.read_bytes() == path.read_bytes():
        damage = flip
    content = path.read_bytes()
    path.unlink()
    damage(path, content, rng, other)
    return f"{damage.__name__} {path.relative_to(directory)}"


@contextmanager
def time_limit() -> Iterator[None]:
    def fail(*_: Any) -> None:
        raise TimeoutError(f"more than {TIME_LIMIT} s")

    previous = signal.signal(signal.SIGALRM, fail)
    signal.alarm(TIME_LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def same_content(a: Path, b: Path) -> bool:
    return a.is_file() and a.read_bytes() == b.read_bytes()


def find_fault(directory: Path, pristine: Pristine, caplog: pytest.LogCaptureFixture) -> str:
    """Why the damage to a run is not handled as it must be; "" if it is."""
    caplog.clear()
    try:
        found = fingerprint(ph.load(directory))
    except UserError as error:
        if "\n" in str(error) or not any(name in str(error) for name in (str(directory), *COVERED)):
            return f"load: the message {str(error)!r} names no file, or has several lines"
    else:
        differences = [name for name in found if found[name] != pristine.fingerprint[name]]
        if differences and not caplog.messages:
            return f"load: {differences} changed silently"
        if "weights" in differences and "has no model.safetensors" not in caplog.text:
            return "load: other weights, and no word of it"
    caplog.clear()
    out = pristine.recipe.out
    steps = [path.relative_to(out) for path in out.glob("checkpoints/step-*")]
    changed = {name for name in COVERED if not same_content(directory / name, out / name)}
    changed |= {
        str(step)
        for step in steps
        for path in (out / step).iterdir()
        if not same_content(directory / step / path.name, path) or (directory / step / path.name).is_symlink()
    }
    reported = {file.name for file in verify_run(directory) if file.status != "ok"} - {str(directory)}
    if "manifest.json" in changed:  # lost, or that of another run: only checkpoints have digests
        reported, changed = reported - set(COVERED), changed - set(COVERED)
    if reported != changed:
        return f"verify: {sorted(reported)} for {sorted(changed)}"
    return ""


def find_resume_fault(directory: Path, pristine: Pristine, caplog: pytest.LogCaptureFixture) -> str:
    """As ``find_fault``, for ``--resume``: refused, or the weights of the undamaged run."""
    caplog.clear()
    recipe = pristine.recipe.model_copy(update={"out": directory})
    try:
        run_training(recipe, resume=True, report=Notes())
        weights = fingerprint(ph.load(directory))["weights"]
    except UserError as error:
        return f"resume: {str(error)!r} has several lines" if "\n" in str(error) else ""
    if weights != pristine.fingerprint["weights"] and not caplog.messages:
        return "resume: other weights, and no word of it"
    return ""


@pytest.mark.acceptance("B12")
@pytest.mark.parametrize("number", range(N_ROUNDS))
def test_no_damage_is_silent_and_none_is_a_crash(
    number: int, runs: dict[str, Pristine], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng, faults = random.Random(number), []
    others = [path for run in runs.values() for path in run.recipe.out.rglob("*") if path.is_file()]
    for index in range(N_PER_ROUND):
        task = rng.choice(list(runs))
        pristine, directory = runs[task], tmp_path / "run"
        shutil.copytree(pristine.recipe.out, directory, ignore=shutil.ignore_patterns("*.html", "data"))
        names = []
        if rng.random() < 0.2:  # so that the checkpoints matter for outputs
            (directory / "model.safetensors").unlink()
            names.append("delete model.safetensors")
        names.append(damage_file(directory, rng, others))
        with time_limit():
            try:
                fault = find_fault(directory, pristine, caplog)
                if not fault and index % RESUME_EVERY == 0:
                    fault = find_resume_fault(directory, pristine, caplog)
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"
        if fault:
            faults.append(f"{number}/{index} {task}, {' and '.join(names)}: {fault}")
        shutil.rmtree(directory)
    assert not faults, "\n".join(faults)
