import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes
from tests.train.distributed.rank_runs import TASKS, assert_same_run, recipe_of, train, train_all
from tests.train.ranks import outputs_of

from polyhead.config.model import ModelConfig
from polyhead.config.recipe import TrainConfig
from polyhead.core.choice import Choice
from polyhead.cost.communication import ParallelLayout, estimate_traffic, ring_all_reduce_bytes
from polyhead.cost.workload import BatchShape
from polyhead.data.batching.length_bucketing import shard_rows
from polyhead.data.batching.packing import PackedRows, Segments
from polyhead.estimate.benchmark import RandomTokenTask
from polyhead.models import build
from polyhead.train import loop
from polyhead.train.loop import derive_seed, train_step
from polyhead.train.run_training import run_training
from polyhead.train.train_state import TrainState

pytestmark = [pytest.mark.usefixtures("no_report"), pytest.mark.acceptance("G5", "A6")]


@pytest.mark.parametrize(
    ("world_size", "tasks"),
    [
        (2, TASKS[::2]),
        (3, TASKS[1::2]),
        pytest.param(3, TASKS[::2], marks=pytest.mark.slow),
        pytest.param(2, TASKS[1::2], marks=pytest.mark.slow),
    ],
    ids=["2-even", "3-odd", "3-even", "2-odd"],
)
def test_several_processes_match_one_process(world_size, tasks, corpus_dir):
    single, parallel = (
        train_all([recipe_of(corpus_dir, task, f"{task}-{world_size}-{n}") for task in tasks], n)
        for n in (1, world_size)
    )
    for a, b in zip(single, parallel, strict=True):
        assert_same_run(a, b)


@pytest.mark.acceptance("G2")
def test_rank_without_rows_contributes_zero(corpus_dir):
    """Batches of two rows at most on three ranks, one batch an update: the third never has any."""
    a, b = (
        train(recipe_of(corpus_dir, "translation", f"few-{n}", max_tokens=26, accumulate=1), n)
        for n in (1, 3)
    )
    assert_same_run(a, b)


# tolerances: muon computes in bf16
OPTIMIZERS = [({"name": "adamw", "eps": 1e-3}, 1e-5), ({"name": "adafactor"}, 1e-4), ({"name": "muon"}, 1e-2)]


def test_optimizers_on_two_ranks_match_one_process(corpus_dir):
    changes = {"freeze": ["encoder_embedding"], "lr_factors": {"decoder": 2.0}, "clip_norm": 0.1}
    runs = [
        train_all(
            [
                recipe_of(
                    corpus_dir, "translation", f"{o['name']}-{n}", optimizer=o, lr=1e-3, ema=None, **changes
                )
                for o, _ in OPTIMIZERS
            ],
            n,
        )
        for n in (1, 2)
    ]
    for (_, tolerance), a, b in zip(OPTIMIZERS, *runs, strict=True):
        for measure in ("loss", "grad_norm"):
            expected, actual = ([row[measure] for row in run["metrics"] if measure in row] for run in (a, b))
            assert actual == pytest.approx(expected, rel=tolerance), measure
            assert min(expected) > 0.1  # gradients were clipped
        frozen = [name for name in a["final"] if name.startswith("encoder_embedding.")]
        assert frozen and all(torch.equal(a["final"][name], b["final"][name]) for name in frozen)


@pytest.mark.acceptance("G6")
def test_resume_with_another_number_of_processes(corpus_dir):
    reference = train(recipe_of(corpus_dir, "translation", "on-all", steps=6), 1)
    for steps, world_size in ((2, 2), (4, 3), (6, 1)):
        resumed_run = train(
            recipe_of(corpus_dir, "translation", "on", steps=steps), world_size, resume=steps > 2
        )
    assert_same_run(reference, resumed_run)


@pytest.mark.acceptance("R1", "R12")
def test_two_processes_repeat_bit_for_bit_over_resume(corpus_dir):
    """With dropout, which each rank draws for itself."""
    changes = {"model": {"dropout": 0.2}}
    names = {"whole": 4, "again": 4, "cut": 2}
    recipes = [
        recipe_of(corpus_dir, "translation", f"bits-{k}", steps=n, **changes) for k, n in names.items()
    ]
    expected, repeated_run, _ = train_all(recipes, 2)
    resumed_run = train(recipe_of(corpus_dir, "translation", "bits-cut", **changes), 2, resume=True)
    for run in (repeated_run, resumed_run):
        assert all(torch.equal(w, run["final"][name]) for name, w in expected["final"].items())
        for group, tensors in expected["last"].tensors.items():
            assert all(torch.equal(t, run["last"].tensors[group][name]) for name, t in tensors.items()), group
    single = train(recipe_of(corpus_dir, "translation", "bits-one", **changes), 1)
    assert not all(torch.equal(w, single["final"][name]) for name, w in expected["final"].items())


def test_dropout_seeds_differ_between_ranks_and_steps(corpus_dir):
    assert len({derive_seed(7, step, rank) for step in range(50) for rank in range(8)}) == 400
    assert derive_seed(7, 3, 0) == derive_seed(7, 3)
    recipe = recipe_of(corpus_dir, "translation", "draws", steps=3)

    def work(ranks):
        seeds, step = [], loop.train_step

        def note_seed(*args):
            seeds.append(torch.initial_seed())
            return step(*args)

        loop.train_step = note_seed
        run_training(recipe, report=Notes(), ranks=ranks)
        return seeds

    first, second = outputs_of(2, work)
    assert len({*first, *second}) == 6
    assert first == [derive_seed(recipe.train.seed, step) for step in (1, 2, 3)]  # as one process would


@pytest.mark.acceptance("A11")
@pytest.mark.parametrize(
    ("task", "option"),
    [("classification", "token_dropout"), pytest.param("translation", "token_split", marks=pytest.mark.slow)],
)
def test_noise_of_batches_differs_between_ranks_and_epochs(task, option, corpus_dir):
    """What is drawn for a batch is not drawn again by another process or in the next epoch.

    Noise that belongs to a row (masked-lm, denoising) is that of one process, as the losses are.
    """
    changes = {"steps": 8, "max_tokens": 600, "accumulate": 1, "eval_every": 99, "save_every": 99}
    recipes = [
        recipe_of(corpus_dir, task, f"noise-{task}-{i}", seed=seed, **changes).model_copy(
            update={"task": Choice(task, **{option: 0.2})}
        )
        for i, seed in enumerate((7, 7, 8))
    ]

    def record(recipe, ranks):
        draws, rand, check_memory = [], torch.rand, loop.check_memory

        def note_draw(*shape, **options):
            numbers = rand(*shape, **options)
            draws.append(str(numbers.flatten()[:4].tolist()))
            return numbers

        def skip_memory_check(*args):
            check_memory(*args)
            draws.clear()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "check_memory", skip_memory_check)
            patch.setattr(torch, "rand", note_draw)
            run_training(recipe, report=Notes(), ranks=ranks)
        return draws

    outputs = outputs_of(2, lambda ranks: [record(recipe, ranks) for recipe in recipes])
    (first, repeated_run, other), (second, *_) = outputs
    assert len(first) >= 8 and len({*first, *second}) == len(first) + len(second)
    assert repeated_run == first
    assert not {*first, *second} & {*other}


def test_shards_of_rows_have_even_lengths():
    rows = np.arange(11)
    shards = [shard.tolist() for shard in shard_rows(rows, 4)]
    assert shards == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7]]
    assert [shard.tolist() for shard in shard_rows(rows[:2], 4)] == [[0], [1]]


def test_shards_of_packed_rows_keep_their_segments():
    segments = Segments(np.arange(7) * 10, np.arange(7) + 1)
    packed_rows = PackedRows(3, np.array([5, 6, 7]), segments, np.array([0, 0, 1, 2, 2, 2, 2]))
    first, second = packed_rows.shard(2)
    assert (first.epoch, first.rows.tolist()) == (3, [5, 7])
    assert first.row_of_segment.tolist() == [0, 0, 1, 1, 1, 1]
    assert first.segments.starts.tolist() == [0, 10, 30, 40, 50, 60]
    assert (second.rows.tolist(), second.row_of_segment.tolist()) == ([6], [0])
    assert second.segments.lengths.tolist() == [3]
    assert len(packed_rows.shard(5)) == 3


def count_sent_bytes() -> int:
    """Bytes this process has sent over TCP, each once, from struct tcp_info of linux/tcp.h."""
    total = 0
    for path in Path("/proc/self/fd").iterdir():
        if not path.is_socket():
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as copy:
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            n_sent, n_again = np.frombuffer(info[200:216], np.uint64)  # tcpi_bytes_sent, tcpi_bytes_retrans
            total += int(n_sent - n_again)
    return total


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
@pytest.mark.parametrize("world_size", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
def test_bytes_of_a_step_match_estimate(world_size):
    sizes = {"vocab_size": 3000, "d_model": 64, "n_heads": 2, "n_layers": 3, "d_ff": 256, "max_len": 64}
    config = ModelConfig(kind="decoder", dropout=0.0, **sizes)

    def work(ranks):
        settings = TrainConfig(steps=10, precision="fp32")
        task, counts = RandomTokenTask(config, BatchShape(2, 16)), []
        training = TrainState(build(config, 1), settings, config.d_model, 10)
        for _ in range(4):
            training.progress.step += 1
            train_step(training, task, [task.collate(None)], settings, ranks)
            ranks.all_reduce(0)
            counts.append(count_sent_bytes())
        return counts

    n_weights = sum(p.numel() for p in build(config, 1).parameters())
    layout = ParallelLayout(data_parallel=world_size)
    expected = estimate_traffic(config, BatchShape(2, 16), n_weights, layout).data
    assert expected == ring_all_reduce_bytes(4 * n_weights, world_size)
    assert expected == 2 * (world_size - 1) / world_size * 4 * n_weights
    for counts in outputs_of(world_size, work):
        steps = np.diff(counts)
        assert steps.mean() == pytest.approx(expected, rel=0.01)
        assert (steps > expected).all()  # counts, flags and heartbeats come on top


def test_values_tensors_and_sums_reach_all_ranks():
    def work(ranks):
        value = ranks.on_rank0(lambda: {"loss": 0.1 + 0.2, "bad": float("nan"), "rank": ranks.rank})
        tensor = torch.full((3,), float(ranks.rank + 5))
        ranks.broadcast([tensor])
        rank = ranks.rank0_first(lambda: ranks.rank)
        return [json.dumps(value), tensor.tolist(), rank, ranks.all_reduce(1, 0.1 * ranks.rank)]

    outputs = outputs_of(3, work)
    for rank, (value, tensor, own_rank, sums) in enumerate(outputs):
        assert value == '{"loss": 0.30000000000000004, "bad": NaN, "rank": 0}'
        assert (tensor, own_rank) == ([5.0] * 3, rank)
        assert sums == pytest.approx([3, 0.3])
        assert sums == outputs[0][3]


def test_rank0_first_order_over_machines(tmp_path):
    """Rank 0, then the first rank of each other machine, then the rest; none returns before all are done."""
    log = tmp_path / "log"

    def work(ranks):
        def write():
            time.sleep(0.1 * (3 - ranks.rank))  # so that those that do not wait would come first
            with log.open("a") as file:
                file.write(str(ranks.rank))

        ranks.rank0_first(write)
        return log.read_text()

    assert outputs_of(4, work, machines=2) == ["0231"] * 4
