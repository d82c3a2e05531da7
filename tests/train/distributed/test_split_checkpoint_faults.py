"""Ranks of a split training are killed: the newest checkpoint is there, and the run goes on to its end."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.conftest import Notes
from tests.train.distributed.rank_runs import assert_same, recipe_of, trained
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.split_runs import assert_equal, learn, made, save
from tests.train.several import together

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.checkpoint import (
    CheckpointDraft,
    open_lazy_checkpoint,
    read_newest_checkpoint,
)
from polyhead.config.recipe import Recipe
from polyhead.core.atomic_io import HashingWriter
from polyhead.train import loop
from polyhead.train.distributed import split_checkpoint
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.distributed.rank_sync import share_checkpoint
from polyhead.train.distributed.split_checkpoint import _PartsWriter
from polyhead.train.run_training import run_training

pytestmark = pytest.mark.usefixtures("unsynced")


def run(
    root: Path, ranks: ProcessGroup, sharded: bool, before_save: Callable[[], None] = lambda: None
) -> None:
    """Train from the newest checkpoint to step 6, saving every second step; the one of step 4 can be hit."""
    training = made(ranks.world_size)
    newest = None if ranks.rank else read_newest_checkpoint(root, read=open_lazy_checkpoint)
    if found := share_checkpoint(newest, ranks):
        training.restore(found)
    while training.progress.step < 6:
        learn(training, ranks.rank, ranks.world_size)
        if training.progress.step == 4:
            before_save()
        save(training, root, ranks, sharded)


def at_call(owner: Any, name: str, call: int, action: Callable[[], None]) -> None:
    """Let a call of a function do something else first."""
    real, calls = getattr(owner, name), [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            action()
        return real(*arguments, **options)

    setattr(owner, name, counted)


def run_until_killed(
    root: Path, sharded: bool, victim: str, point: tuple[Any, str, int], ranks: ProcessGroup
) -> None:
    """Train; in the save of step 4 rank 0, rank 1 or all are killed, where rank 0, or rank 1, is then."""

    def before_save() -> None:
        pids = list(ranks.map(lambda _: os.getpid(), range(2)))
        victims = {"0": pids[:1], "1": pids[1:], "all": pids[::-1]}[victim]
        if ranks.rank == (victim == "1"):
            at_call(*point, lambda: [os.kill(pid, signal.SIGKILL) for pid in victims])

    run(root, ranks, sharded, before_save)


# where a rank is killed in a save, and whether the checkpoint has got its name by then
RANK_0_POINTS: dict[str, tuple[Any, str, int, bool]] = {
    "makes directory": (CheckpointDraft, "create", 1, False),
    "writes state": (CheckpointDraft, "commit", 1, False),
    "renames": (checkpoint.os, "rename", 1, False),
    "has renamed": (checkpoint, "replace_file", 1, True),
    "has saved": (checkpoint, "remove_quietly", 1, True),
}


POINTS: dict[bool, dict[str, tuple[Any, str, int, bool]]] = {
    False: {
        "first tensor": (split_checkpoint, "get_whole", 1, False),
        "late tensor": (split_checkpoint, "get_whole", 60, False),
        "syncs": (HashingWriter, "__exit__", 2, False),
    },
    True: {
        "writes parts": (_PartsWriter, "write", 2, False),
        "hashes parts": (split_checkpoint, "hash_file", 1, False),
        "plans": (split_checkpoint.dist, "all_gather_object", 1, False),
    },
}


KILLS = {
    (sharded, victim): [
        (sharded, victim, point)
        for point in (*POINTS[sharded], *(RANK_0_POINTS if victim != "1" else ()))
        if (victim, point) != ("1", "syncs")
    ]
    for sharded in (False, True)
    for victim in ("0", "1", "all")
}


QUICK_KILLS = [(True, "all", "writes parts")]


@pytest.mark.acceptance("G1", "R1", "R11")
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(QUICK_KILLS, id="one"),
        *(
            pytest.param(kills, id=f"{'sharded' if sharded else 'whole'}-{victim}", marks=pytest.mark.slow)
            for (sharded, victim), kills in KILLS.items()
        ),
    ],
)
def test_a_kill_at_any_point_of_a_save_leaves_the_newest_checkpoint_and_the_same_end(
    kills: list[tuple[bool, str, str]], tmp_path: Path
) -> None:
    roots = {kill: tmp_path / "-".join(map(str, kill)) for kill in kills}
    for (sharded, victim, point), root in roots.items():
        owner, name, call, is_named = (RANK_0_POINTS | POINTS[sharded])[point]
        work = partial(run_until_killed, root, sharded, victim, (owner, name, call))
        # which passes where rank 0 waits for the files of a rank that is dead
        ends = together(2, work, timeout=60 if kills is QUICK_KILLS else 10)
        killed = {"0": {0}, "1": {1}, "all": {0, 1}}[victim]
        codes = [-signal.SIGKILL if rank in killed else RANK_LOST for rank in (0, 1)]
        assert [end.code for end in ends] == codes, (sharded, victim, point, ends)
        found = read_newest_checkpoint(root)
        assert found and found.step == (4 if is_named else 2), point

    def finish(ranks: ProcessGroup) -> None:
        for sharded in (False, True):
            run(tmp_path / f"whole-run-{sharded}", ranks, sharded)
        for (sharded, _, _), root in roots.items():
            run(root, ranks, sharded)

    ends = together(2, finish, timeout=60)
    assert [end.code for end in ends] == [0, 0], ends
    for (sharded, victim, point), root in roots.items():
        assert_equal(root / "step-6", tmp_path / f"whole-run-{sharded}" / "step-6")
        assert not [path for path in root.iterdir() if "." in path.name], (sharded, victim, point)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_a_killed_training_goes_on_to_the_same_end(kind: str, place: Path) -> None:
    """To the bit on as many processes; with the same curve on one."""

    def recipe(name: str, **options: Any) -> Recipe:
        parallel = {"parallel": {"shard": 2, "checkpoint": kind}} if name[-1] != "1" else {}
        name = name.removesuffix("-1")
        return recipe_of(
            place, "language-model", f"{kind}-{name}", steps=12, save_every=3, **parallel, **options
        )

    def train(ranks: ProcessGroup, name: str, rank: int, call: int) -> None:
        if ranks.rank == rank:
            at_call(loop, "train_step", call, lambda: os.kill(os.getpid(), signal.SIGKILL))
        run_training(recipe(name), report=Notes(), ranks=ranks)

    unbroken = trained(recipe("unbroken"), 2)
    for rank, call in ((0, 5), (1, 7), (1, 12)):
        name = f"killed-{rank}-{call}"
        ends = together(2, partial(train, name=name, rank=rank, call=call), timeout=10)
        assert ends[rank].code == -signal.SIGKILL and ends[1 - rank].code == RANK_LOST, ends
        copy = recipe(f"{name}-one-1")
        shutil.copytree(recipe(name).out, copy.out)
        again = trained(recipe(name), 2, resume=True)
        assert again["final"].keys() == unbroken["final"].keys()
        assert all(torch.equal(again["final"][key], tensor) for key, tensor in unbroken["final"].items())
        for group, tensors in unbroken["last"].tensors.items():
            assert all(
                torch.equal(again["last"].tensors[group][key], tensor) for key, tensor in tensors.items()
            )
        assert_same(unbroken, trained(copy, 1, resume=True))
