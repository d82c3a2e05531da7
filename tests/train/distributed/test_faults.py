"""One of several processes fails, dies or stands still: all end, soon, and one of them says why."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
from tests.train.conftest import Notes, small_recipe, write_corpus
from tests.train.distributed.rank_runs import recipe_of, trained
from tests.train.several import End, together

from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.nn.stack import Stack
from polyhead.train import loop
from polyhead.train.distributed import replicate_model, split_checkpoint
from polyhead.train.distributed.kv_store import HEARTBEAT_INTERVAL
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.run_training import run_training
from polyhead.train.tasks.translation import TranslationTask

TIMEOUT = 5.0
FIRST_SAVE = (
    6  # call of ``tell``: behind those of checkpoint, tokenizer, vocabulary, what is alike, and evaluation
)
KILLED, RAISED = -signal.SIGKILL, 70
pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture(scope="module")
def place(unsynced: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("faults")
    write_corpus(directory)
    return directory


def fail() -> None:
    raise RuntimeError("boom")


def out_of_memory() -> None:
    raise UserError("it does not fit")


ACTIONS: dict[str, tuple[Callable[[], None], int]] = {
    "kill": (lambda: os.kill(os.getpid(), signal.SIGKILL), KILLED),
    "stop": (lambda: os.kill(os.getpid(), signal.SIGSTOP), KILLED),  # and killed when the others have ended
    "raise": (fail, RAISED),
    "refuse": (out_of_memory, 2),
    "exit": (lambda: os._exit(0), 0),
}


def at(call: int, real: Callable[..., Any], action: Callable[[], None]) -> Callable[..., Any]:
    """The function, but its nth call does something else first."""
    calls = [0]

    @wraps(real)
    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            action()
        return real(*arguments, **options)

    return counted


def sabotage(where: str, ranks: ProcessGroup, action: Callable[[], None]) -> None:
    """Let this process do it: before a step, between two buckets of gradients, in its part of an evaluation,
    in a save.
    """
    others: Any = ranks
    if where in ("first step", "late step"):
        loop.train_step = at(1 if where == "first step" else 19, loop.train_step, action)  # type: ignore[assignment]
    elif where == "between buckets":
        replicate_model.sum_bucket = at(40, replicate_model.sum_bucket, action)
    elif where == "in the model":
        # in a step before the first samples of the report, whose errors would not end a training
        Stack.forward = at(3, Stack.forward, action)  # type: ignore[method-assign]
    elif where == "lock step":  # in an evaluation between steps, in which every rank has work
        in_lock_step = others.map_in_lockstep
        others.map_in_lockstep = lambda work, items: in_lock_step(at(1, work, action), items)
    elif where == "evaluation":
        real = others.map
        others.map = lambda work, items: real(at(1, work, action), items)
    elif ranks.rank:
        others.on_rank0 = at(FIRST_SAVE, others.on_rank0, action)
    else:
        for module, name in (
            (checkpoint.safetensors, "write_safetensors"),
            (split_checkpoint, "write_stream"),
        ):
            setattr(module, name, at(1, getattr(module, name), action))


def sabotaged(recipe: Recipe, rank: int, where: str, what: str, world: int = 2) -> list[End]:
    def work(ranks: ProcessGroup) -> None:
        if ranks.rank == rank:
            sabotage(where, ranks, ACTIONS[what][0])
        one_each = partial(replicate_model.DistributedDataParallel, bucket_cap_mb=1e-6)  # tensors in a bucket
        replicate_model.DistributedDataParallel = one_each  # type: ignore[misc, assignment]
        run_training(recipe, report=Notes(), ranks=ranks)

    return together(world, work, timeout=TIMEOUT, enough=world - 1 if what == "stop" else None)


WHERE = ["first step", "between buckets", "evaluation", "save", "late step"]
QUICK = {("kill", 1, "first step"), ("kill", 0, "save"), ("stop", 1, "between buckets"), ("raise", 1,
    "evaluation"),
         ("kill", 1, "evaluation"), ("stop", 0, "evaluation"), ("exit", 1, "late step"), ("refuse", 1,
             "first step")}  # fmt: skip
CASES = [(what, rank, where) for what in ACTIONS for rank in (0, 1) for where in WHERE]


@pytest.mark.acceptance("G1", "R11")
@pytest.mark.parametrize(
    ("what", "rank", "where"),
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES],
)
def test_all_end_when_one_fails_and_the_run_goes_on(what: str, rank: int, where: str, place: Path) -> None:
    name = f"{what}-{rank}-{where.replace(' ', '-')}"
    check_all_end(what, rank, where, recipe_of(place, "translation", name, steps=20))


FORMS = {"shard": {"shard": 2}, "tensor": {"tensor": 2}, "context": {"context": 2}}
SPLIT_QUICK = {("kill", 1, "first step"), ("stop", 1, "in the model"), ("raise", 1, "in the model"),
    ("kill", 0, "save")}  # fmt: skip
SPLIT_CASES = [
    (what, rank, where)
    for what in ACTIONS
    for rank in (0, 1)
    for where in (*WHERE, "in the model", "lock step")
    if where not in ("between buckets", "evaluation")  # of the whole model, as without a split
]


@pytest.mark.acceptance("G1", "R11")
@pytest.mark.parametrize(
    "form", ["shard", *(pytest.param(form, marks=pytest.mark.slow) for form in ("tensor", "context"))]
)
@pytest.mark.parametrize(
    ("what", "rank", "where"),
    [pytest.param(*case, marks=[] if case in SPLIT_QUICK else pytest.mark.slow) for case in SPLIT_CASES],
)
def test_all_end_when_one_with_a_part_of_the_model_fails(
    form: str, what: str, rank: int, where: str, place: Path
) -> None:
    name = f"{form}-{what}-{rank}-{where.replace(' ', '-')}"
    check_all_end(what, rank, where, recipe_of(place, "language-model", name, steps=20, parallel=FORMS[form]))


def check_all_end(what: str, rank: int, where: str, recipe: Recipe) -> None:
    """All processes end, one of them says why, and the run goes on to the same end."""
    ends = sabotaged(recipe, rank, where, what)
    own, other = ends[rank], ends[1 - rank]
    assert own.code == ACTIONS[what][1], ends
    assert other.code == RANK_LOST, ends
    if what in ("raise", "refuse") and rank == 1:
        assert other.said == ""  # who failed has said why
    elif what in ("raise", "refuse"):  # whose word may be lost with the board that it keeps
        assert other.said == "" or other.said.startswith("the connection to another rank was lost (")
    elif rank == 1 and (what == "stop" or where == "evaluation"):  # where no connection waits for it
        assert other.said == "rank 1 has not answered for 5 s"
    elif rank == 1 and where == "lock step" and what in ("kill", "exit"):
        # rank 0 waits for it in a collective of the model, or for its results
        lost = "the connection to another rank was lost ("
        assert other.said == "rank 1 has not answered for 5 s" or other.said.startswith(lost)
    elif what == "stop":
        assert other.said.startswith("the other ranks have not answered for")
    else:
        assert other.said.startswith("the connection to another rank was lost (")
    if where == "late step":  # and the run goes on from its checkpoints to the same end
        whole = trained(
            recipe.model_copy(update={"out": recipe.out.with_name(f"{recipe.out.name}-whole")}), 2
        )
        on = trained(recipe, 2, resume=True)
        assert all((w == on["final"][name]).all() for name, w in whole["final"].items())


@pytest.mark.acceptance("G7", "R4")
def test_a_full_disk_on_the_first_rank_ends_all(place: Path) -> None:
    recipe = recipe_of(place, "translation", "full", steps=20)

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def work(ranks: ProcessGroup) -> None:
        if not ranks.rank:
            checkpoint.safetensors.write_safetensors = at(3, checkpoint.safetensors.write_safetensors, full)  # type: ignore[assignment]
        run_training(recipe, report=Notes(), ranks=ranks)

    first, other = together(2, work, timeout=TIMEOUT)
    assert (first.code, other.code) == (2, RANK_LOST)
    assert "No space left on device" in first.said
    assert not (recipe.out / "run.lock").exists()


@pytest.mark.acceptance("G1")
def test_three_processes_end_when_one_is_killed(place: Path) -> None:
    ends = sabotaged(recipe_of(place, "translation", "three", steps=20), 2, "first step", "kill", world=3)
    assert [end.code for end in ends] == [RANK_LOST, RANK_LOST, KILLED]


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_long_evaluation_is_waited_for(rank: int, place: Path) -> None:
    """Longer than the timeout: who measures lives, and that is what counts."""
    recipe = recipe_of(place, "translation", f"patient-{rank}", steps=4)

    def work(ranks: ProcessGroup) -> None:
        if ranks.rank == rank:
            TranslationTask.evaluate = at(
                1, TranslationTask.evaluate, lambda: time.sleep(5 * HEARTBEAT_INTERVAL)
            )  # type: ignore[method-assign]
        run_training(recipe, report=Notes(), ranks=ranks)

    ends = together(2, work, timeout=3 * HEARTBEAT_INTERVAL)
    assert [end.code for end in ends] == [0, 0], ends


@pytest.mark.acceptance("G4", "R11")
@pytest.mark.parametrize("rounds", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_processes_that_have_done_their_work_end_well(rounds: int) -> None:
    for _ in range(rounds):
        assert [end.code for end in together(3, lambda ranks: ranks.all_reduce(1))] == [0, 0, 0]


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_wish_to_stop_on_any_rank_is_granted_on_all_at_one_step(rank: int, place: Path) -> None:
    recipe = small_recipe(place, f"wish-{rank}", steps=40, eval_every=100, save_every=100)

    def work(ranks: ProcessGroup) -> Any:
        if ranks.rank == rank:
            loop.train_step = at(6, loop.train_step, lambda: os.kill(os.getpid(), signal.SIGTERM))  # type: ignore[assignment]
        _, outcome = run_training(recipe, report=Notes(), ranks=ranks)
        return [outcome.status, outcome.step]

    assert [end.said for end in together(2, work)] == [["interrupted", 6]] * 2
    assert checkpoint.list_steps(recipe.out / "checkpoints") == [6]
