import json
import time

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes, equal_tensors
from tests.train.distributed.rank_runs import TASKS, assert_same_run, on_call, recipe_of, train, train_all
from tests.train.ranks import outputs_of

from polyhead import Choice
from polyhead.data.batching.length_bucketing import shard_rows
from polyhead.data.batching.packing import PackedRows, Segments
from polyhead.train import loop
from polyhead.train.loop import derive_seed
from polyhead.train.run_training import run_training

pytestmark = [pytest.mark.usefixtures("no_report"), pytest.mark.acceptance("G5", "A6")]


@pytest.mark.parametrize(
    ("world_size", "tasks"),
    [
        (2, [*TASKS[::2], "token-classification"]),
        (3, TASKS[1::2]),
        pytest.param(3, TASKS[::2], marks=pytest.mark.slow),
        pytest.param(2, TASKS[1::2], marks=pytest.mark.slow),
    ],
    ids=["2-even", "3-odd", "3-even", "2-odd"],
)
def test_several_processes_match_one_process(world_size, tasks, corpus_dir):
    def train_tasks(n):
        return train_all([recipe_of(corpus_dir, task, f"{task}-{world_size}-{n}") for task in tasks], n)

    for a, b in zip(train_tasks(1), train_tasks(world_size), strict=True):
        assert_same_run(a, b)


@pytest.mark.acceptance("G2")
def test_rank_without_rows_contributes_zero(corpus_dir):
    """Batches of two rows at most on three ranks, one batch an update: the third never has any."""
    options = {"max_tokens": 26, "accumulate": 1}
    assert_same_run(*(train(recipe_of(corpus_dir, "translation", f"few-{n}", **options), n) for n in (1, 3)))


# tolerances: muon computes in bf16
OPTIMIZERS = [({"name": "adamw", "eps": 1e-3}, 1e-5), ({"name": "adafactor"}, 1e-4), ({"name": "muon"}, 1e-2)]


def test_optimizers_on_two_ranks_match_one_process(corpus_dir):
    changes = {"freeze": ["encoder_embedding"], "lr_factors": {"decoder": 2.0}, "clip_norm": 0.1}
    changes |= {"lr": 1e-3, "ema": None}

    def train_optimizers(n):
        options = {
            f"{optimizer['name']}-{n}": changes | {"optimizer": optimizer} for optimizer, _ in OPTIMIZERS
        }
        return train_all([recipe_of(corpus_dir, "translation", out, **options[out]) for out in options], n)

    for (_, tolerance), a, b in zip(OPTIMIZERS, train_optimizers(1), train_optimizers(2), strict=True):
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
        recipe = recipe_of(corpus_dir, "translation", "on", steps=steps)
        resumed_run = train(recipe, world_size, resume=steps > 2)
    assert_same_run(reference, resumed_run)


@pytest.mark.acceptance("R1", "R12")
def test_two_processes_repeat_bit_for_bit_over_resume(corpus_dir):
    """With dropout, which each rank draws for itself."""

    def recipe(name, steps=4):
        return recipe_of(corpus_dir, "translation", f"bits-{name}", steps=steps, model={"dropout": 0.2})

    expected, repeated_run, _ = train_all([recipe("whole"), recipe("again"), recipe("cut", 2)], 2)
    for run in (repeated_run, train(recipe("cut"), 2, resume=True)):
        assert equal_tensors(run["final"], expected["final"])
        for group, tensors in expected["last"].tensors.items():
            assert equal_tensors(dict(run["last"].tensors[group]), dict(tensors)), group
    assert not equal_tensors(train(recipe("one"), 1)["final"], expected["final"])


def test_dropout_seeds_differ_between_ranks_and_steps(corpus_dir):
    assert len({derive_seed(7, step, rank) for step in range(50) for rank in range(8)}) == 400
    recipe = recipe_of(corpus_dir, "translation", "draws", steps=3)

    def work(ranks):
        seeds = []
        loop.train_step = on_call(0, loop.train_step, lambda: seeds.append(torch.initial_seed()))
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
    recipes = [recipe_of(corpus_dir, task, f"noise-{task}-{i}", seed=i // 2, **changes) for i in range(3)]
    task_config = Choice(task, **{option: 0.2})

    def record(recipe, ranks):
        draws, rand, check_memory = [], torch.rand, loop.check_memory

        def note_draw(*shape, **options):
            numbers = rand(*shape, **options)
            draws.append(str(numbers.flatten()[:4].tolist()))
            return numbers

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "check_memory", lambda *args: (check_memory(*args), draws.clear()))
            patch.setattr(torch, "rand", note_draw)
            run_training(recipe.model_copy(update={"task": task_config}), report=Notes(), ranks=ranks)
        return draws

    outputs = outputs_of(2, lambda ranks: [record(recipe, ranks) for recipe in recipes])
    (first, repeated_run, other), (second, *_) = outputs
    assert len(first) >= 8 and len({*first, *second}) == len(first) + len(second)
    assert repeated_run == first
    assert not {*first, *second} & {*other}


def test_shards_have_even_lengths_and_own_segments():
    rows = np.arange(11)
    shards = [shard.tolist() for shard in shard_rows(rows, 4)]
    assert shards == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7]]
    assert [shard.tolist() for shard in shard_rows(rows[:2], 4)] == [[0], [1]]
    segments = Segments(np.arange(7) * 10, np.arange(7) + 1)
    packed_rows = PackedRows(3, np.array([5, 6, 7]), segments, np.array([0, 0, 1, 2, 2, 2, 2]))
    first, second = packed_rows.shard(2)
    assert (first.epoch, first.rows.tolist()) == (3, [5, 7])
    assert first.row_of_segment.tolist() == [0, 0, 1, 1, 1, 1]
    assert first.segments.starts.tolist() == [0, 10, 30, 40, 50, 60]
    assert (second.rows.tolist(), second.row_of_segment.tolist()) == ([6], [0])
    assert second.segments.lengths.tolist() == [3]
    assert len(packed_rows.shard(5)) == 3


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

    def work(ranks):
        orders = []
        for i in range(5):
            log = tmp_path / f"log-{i}"

            def write(i=i, log=log):
                while len(list(tmp_path.glob(f"here-{i}-*"))) < 4:  # those that do not wait could come first
                    time.sleep(0.001)
                with log.open("a") as file:
                    file.write(str(ranks.rank))

            (tmp_path / f"here-{i}-{ranks.rank}").touch()
            ranks.rank0_first(write)
            orders.append(log.read_text())
        return orders

    for orders in outputs_of(4, work, machines=2):
        assert {(order[:2], *sorted(order[2:])) for order in orders} == {("02", "1", "3")}
