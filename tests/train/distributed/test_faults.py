import errno
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
from tests.train.conftest import Notes, small_recipe
from tests.train.distributed.rank_runs import on_call, recipe_of, train
from tests.train.ranks import outputs_of, run_ranks

from polyhead.checkpoint import checkpoint
from polyhead.core.errors import UserError
from polyhead.nn.stack import Stack
from polyhead.train import loop
from polyhead.train.distributed import replicate_model, sharded_checkpoint
from polyhead.train.distributed.kv_store import HEARTBEAT_INTERVAL
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.run_training import run_training
from polyhead.train.tasks.translation import TranslationTask

TIMEOUT = 5.0
FIRST_SAVE = 6  # call of on_rank0, after those of checkpoint, tokenizer, vocabulary, agreement and evaluation
KILLED_CODE, RAISED_CODE = -signal.SIGKILL, 70
LOST_CONNECTION = "the connection to another rank was lost ("
pytestmark = pytest.mark.usefixtures("no_report")


def fail() -> None:
    raise RuntimeError("boom")


def refuse() -> None:
    raise UserError("it does not fit")


ACTIONS: dict[str, tuple[Callable[[], None], int]] = {
    "kill": (lambda: os.kill(os.getpid(), signal.SIGKILL), KILLED_CODE),
    # and killed when the others have ended
    "stop": (lambda: os.kill(os.getpid(), signal.SIGSTOP), KILLED_CODE),
    "raise": (fail, RAISED_CODE),
    "refuse": (refuse, 2),
    "exit": (lambda: os._exit(0), 0),
}


def inject(point: str, ranks, action: Callable[[], None]) -> None:
    if point in ("first step", "late step"):
        loop.train_step = on_call(1 if point == "first step" else 7, loop.train_step, action)
    elif point == "between buckets":
        replicate_model.sum_bucket = on_call(40, replicate_model.sum_bucket, action)
    elif point == "in the model":
        Stack.forward = on_call(3, Stack.forward, action)
    elif point == "lockstep":  # in an evaluation between steps, in which every rank has work
        map_in_lockstep = ranks.map_in_lockstep
        ranks.map_in_lockstep = lambda work, items: map_in_lockstep(on_call(1, work, action), items)
    elif point == "evaluation":
        map_fn = ranks.map
        ranks.map = lambda work, items: map_fn(on_call(1, work, action), items)
    elif ranks.rank:  # in a save
        ranks.on_rank0 = on_call(FIRST_SAVE, ranks.on_rank0, action)
    else:
        writers = ((checkpoint.safetensors, "write_safetensors"), (sharded_checkpoint, "write_stream"))
        for module, name in writers:
            setattr(module, name, on_call(1, getattr(module, name), action))


def run_with_fault(recipe, fault: str, rank: int, point: str, world_size: int = 2):
    def work(ranks):
        if ranks.rank == rank:
            inject(point, ranks, ACTIONS[fault][0])
        # one tensor in a bucket
        ddp = partial(replicate_model.DistributedDataParallel, bucket_cap_mb=1e-6)
        replicate_model.DistributedDataParallel = ddp
        run_training(recipe, report=Notes(), ranks=ranks)

    n_expected = world_size - 1 if fault == "stop" else None
    return run_ranks(world_size, work, timeout=TIMEOUT, n_expected=n_expected)


POINTS = ["first step", "between buckets", "evaluation", "save", "late step"]
FAST = {
    ("kill", 1, "first step"),
    ("kill", 0, "save"),
    ("stop", 1, "between buckets"),
    ("raise", 1, "evaluation"),
    ("exit", 1, "late step"),
    ("refuse", 0, "first step"),
}
FAULTS = list(product(ACTIONS, (0, 1), POINTS))


def mark_slow(cases, fast):
    return [pytest.param(*case, marks=[] if case in fast else pytest.mark.slow) for case in cases]


@pytest.mark.acceptance("G1", "R11")
@pytest.mark.parametrize(("fault", "rank", "point"), mark_slow(FAULTS, FAST))
def test_fault_of_one_process_ends_all(fault, rank, point, corpus_dir):
    name = f"{fault}-{rank}-{point.replace(' ', '-')}"
    check_all_end(fault, rank, point, recipe_of(corpus_dir, "translation", name, steps=8))


PARALLEL = {"shard": {"shard": 2}, "tensor": {"tensor": 2}, "context": {"context": 2}}
FAST_SPLIT = {("shard", "kill", 1, "first step")}
FAST_SPLIT |= {("shard", fault, 1, "in the model") for fault in ("stop", "raise")}
# those of the whole model are as without shards
SPLIT_POINTS = ["first step", "save", "late step", "in the model", "lockstep"]
SPLIT_FAULTS = list(product(PARALLEL, ACTIONS, (0, 1), SPLIT_POINTS))


@pytest.mark.acceptance("G1", "R11")
@pytest.mark.parametrize(("parallel", "fault", "rank", "point"), mark_slow(SPLIT_FAULTS, FAST_SPLIT))
def test_fault_of_one_process_ends_sharded_training(parallel, fault, rank, point, corpus_dir):
    name = f"{parallel}-{fault}-{rank}-{point.replace(' ', '-')}"
    recipe = recipe_of(corpus_dir, "language-model", name, steps=8, parallel=PARALLEL[parallel])
    check_all_end(fault, rank, point, recipe)


def check_all_end(fault, rank, point, recipe):
    results = run_with_fault(recipe, fault, rank, point)
    code, error = results[1 - rank]
    assert results[rank].code == ACTIONS[fault][1], results
    assert code == RANK_LOST, results
    if fault in ("raise", "refuse") and rank == 1:
        assert error == ""  # the rank that failed has printed its error
    elif fault in ("raise", "refuse"):  # whose error may be lost with the store that it keeps
        assert error == "" or error.startswith(LOST_CONNECTION)
    elif rank == 1 and (fault == "stop" or point == "evaluation"):  # no connection waits for it
        assert error == "rank 1 has not answered for 5 s"
    elif rank == 1 and point == "lockstep" and fault in ("kill", "exit"):
        # rank 0 waits for it in a collective of the model, or for its results
        assert error == "rank 1 has not answered for 5 s" or error.startswith(LOST_CONNECTION)
    elif fault == "stop":
        assert error.startswith("the other ranks have not answered for")
    else:
        assert error.startswith(LOST_CONNECTION)
    if point == "late step":
        copy = recipe.model_copy(update={"out": recipe.out.with_name(f"{recipe.out.name}-whole")})
        expected, resumed_run = train(copy, 2), train(recipe, 2, resume=True)
        assert all((w == resumed_run["final"][name]).all() for name, w in expected["final"].items())


@pytest.mark.acceptance("G7", "R4")
def test_full_disk_of_rank_0_ends_all(corpus_dir):
    recipe = recipe_of(corpus_dir, "translation", "full", steps=8)

    def fill_disk():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def work(ranks):
        if not ranks.rank:
            write = checkpoint.safetensors.write_safetensors
            checkpoint.safetensors.write_safetensors = on_call(3, write, fill_disk)
        run_training(recipe, report=Notes(), ranks=ranks)

    first, second = run_ranks(2, work, timeout=TIMEOUT)
    assert (first.code, second.code) == (2, RANK_LOST)
    assert "No space left on device" in first.output
    assert not (recipe.out / "run.lock").exists()


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_evaluation_longer_than_timeout_is_no_failure(rank, corpus_dir):
    """A rank that sends heartbeats is alive."""
    recipe = recipe_of(corpus_dir, "translation", f"patient-{rank}", steps=2)

    def work(ranks):
        if ranks.rank == rank:
            evaluate = TranslationTask.evaluate
            TranslationTask.evaluate = on_call(1, evaluate, lambda: time.sleep(5 * HEARTBEAT_INTERVAL))
        run_training(recipe, report=Notes(), ranks=ranks)

    results = run_ranks(2, work, timeout=3 * HEARTBEAT_INTERVAL)
    assert [result.code for result in results] == [0, 0], results


@pytest.mark.acceptance("G4", "R11")
@pytest.mark.parametrize("n_rounds", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_processes_exit_cleanly_after_their_work(n_rounds):
    for _ in range(n_rounds):
        outputs_of(3, lambda ranks: ranks.all_reduce(1))


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_signal_stops_all_ranks_at_one_step(rank, corpus_dir):
    recipe = small_recipe(corpus_dir, f"stop-{rank}", steps=40, eval_every=100, save_every=100)

    def work(ranks):
        if ranks.rank == rank:
            stop = lambda: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
            loop.train_step = on_call(6, loop.train_step, stop)
        _, outcome = run_training(recipe, report=Notes(), ranks=ranks)
        return [outcome.status, outcome.step]

    assert outputs_of(2, work) == [["interrupted", 6]] * 2
    assert checkpoint.list_steps(recipe.out / "checkpoints") == [6]
