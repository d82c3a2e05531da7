import os
import signal
from functools import partial

import pytest
from tests.train.distributed.rank_runs import on_call
from tests.train.distributed.sharded_runs import assert_equal_checkpoints, make_training, save, train_steps
from tests.train.ranks import outputs_of, run_ranks

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.checkpoint import CheckpointDraft, open_lazy_checkpoint, read_newest_checkpoint
from polyhead.core.atomic_io import HashingWriter
from polyhead.train.distributed import sharded_checkpoint
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.rank_sync import share_checkpoint
from polyhead.train.distributed.sharded_checkpoint import _PartsWriter

pytestmark = pytest.mark.usefixtures("no_report")


def run_steps(root, ranks, is_sharded, before_save=lambda: None) -> None:
    training = make_training(ranks.world_size)
    newest = None if ranks.rank else read_newest_checkpoint(root, read=open_lazy_checkpoint)
    if newest_shared := share_checkpoint(newest, ranks):
        training.restore(newest_shared)
    while training.progress.step < 6:
        train_steps(training, ranks.rank, ranks.world_size)
        if training.progress.step == 4:
            before_save()
        save(training, root, ranks, is_sharded)


def kill_on_call(owner, name, n, pids) -> None:
    kill = lambda: [os.kill(pid, signal.SIGKILL) for pid in pids]  # noqa: E731
    setattr(owner, name, on_call(n, getattr(owner, name), kill))


def run_until_killed(root, is_sharded, victim, point, ranks) -> None:
    """Train; in the save of step 4 rank 0, rank 1 or all are killed when rank 0, or 1, is at the point."""

    def before_save():
        pids = list(ranks.map(lambda _: os.getpid(), range(2)))
        victims = {"0": pids[:1], "1": pids[1:], "all": pids[::-1]}[victim]
        if ranks.rank == (victim == "1"):
            kill_on_call(*point, victims)

    run_steps(root, ranks, is_sharded, before_save)


# points of a save: owner, name and number of the call, and whether the checkpoint has its final name by then
RANK_0_POINTS = {
    "makes directory": (CheckpointDraft, "create", 1, False),
    "writes state": (CheckpointDraft, "commit", 1, False),
    "renames": (checkpoint.os, "rename", 1, False),
    "has renamed": (checkpoint, "replace_file", 1, True),
    "has saved": (checkpoint, "remove_quietly", 1, True),
}
POINTS = {
    False: {
        "first tensor": (sharded_checkpoint, "full_tensor", 1, False),
        "late tensor": (sharded_checkpoint, "full_tensor", 60, False),
        "syncs": (HashingWriter, "__exit__", 2, False),
    },
    True: {
        "writes parts": (_PartsWriter, "write", 2, False),
        "hashes parts": (sharded_checkpoint, "hash_file", 1, False),
        "plans": (sharded_checkpoint.dist, "all_gather_object", 1, False),
    },
}
FAST_KILLS = [(True, "all", "writes parts")]
KILLS = {
    f"{'is_sharded' if is_sharded else 'whole'}-{victim}": [
        (is_sharded, victim, point)
        for point in (*POINTS[is_sharded], *(RANK_0_POINTS if victim != "1" else ()))
        if (victim, point) != ("1", "syncs")
    ]
    for is_sharded in (False, True)
    for victim in ("0", "1", "all")
}


@pytest.mark.acceptance("G1", "R1", "R11")
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(FAST_KILLS, id="one"),
        *(pytest.param(kills, id=name, marks=pytest.mark.slow) for name, kills in KILLS.items()),
    ],
)
def test_kill_during_save_leaves_newest_checkpoint(kills, tmp_path):
    roots = {kill: tmp_path / "-".join(map(str, kill)) for kill in kills}
    for (is_sharded, victim, point), root in roots.items():
        *call, is_named = (RANK_0_POINTS | POINTS[is_sharded])[point]
        work = partial(run_until_killed, root, is_sharded, victim, call)
        # a rank 0 that waits for the files of a dead rank ends after the timeout
        results = run_ranks(2, work, timeout=60 if kills is FAST_KILLS else 10)
        killed_ranks = {"0": {0}, "1": {1}, "all": {0, 1}}[victim]
        codes = [-signal.SIGKILL if rank in killed_ranks else RANK_LOST for rank in (0, 1)]
        assert [result.code for result in results] == codes, (is_sharded, victim, point, results)
        newest = read_newest_checkpoint(root)
        assert newest and newest.step == (4 if is_named else 2), point

    def finish(ranks):
        for is_sharded in (False, True):
            run_steps(tmp_path / f"reference-{is_sharded}", ranks, is_sharded)
        for (is_sharded, _, _), root in roots.items():
            run_steps(root, ranks, is_sharded)

    outputs_of(2, finish)
    for kill, root in roots.items():
        assert_equal_checkpoints(root / "step-6", tmp_path / f"reference-{kill[0]}" / "step-6")
        assert not [path for path in root.iterdir() if "." in path.name], kill
